//! Loops over rows that the compiler turns into vector code: once for AVX2 where the machine has it, once for any.
//!
//! The formulas are libjpeg's, to the last bit: its "fancy" upsampling of halved chroma and its conversion of YCbCr.

/// Defines a function compiled twice, of which the machine's features choose one.
macro_rules! lanes {
    ($(#[$doc:meta])* pub fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        pub fn $name($($arg: $type),*) {
            #[inline(always)]
            fn body($($arg: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn wide($($arg: $type),*) {
                    body($($arg),*)
                }
                if is_x86_feature_detected!("avx2") {
                    // The machine has what the function was compiled for.
                    return unsafe { wide($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use lanes;

/// Copies to memory that isn't read again soon: past the caches, which saves reading it first.
pub fn send(from: &[u8], to: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        return unsafe { send_avx2(from, to) };
    }
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn send_avx2(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::*;
    assert_eq!(from.len(), to.len());
    // Such stores are of whole aligned vectors; what is before and behind them is copied as usual.
    let (head, body, tail) = to.align_to_mut::<__m256i>();
    let (from_head, rest) = from.split_at(head.len());
    let (from_body, from_tail) = rest.split_at(size_of_val(body));
    head.copy_from_slice(from_head);
    for (to, from) in body.iter_mut().zip(from_body.chunks_exact(32)) {
        _mm256_stream_si256(to, _mm256_loadu_si256(from.as_ptr().cast()));
    }
    tail.copy_from_slice(from_tail);
}

/// Makes everything that was sent visible to others; once, at the end.
pub fn sent() {
    #[cfg(target_arch = "x86_64")]
    // Part of every x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    }
}

lanes! {
    /// Splits pixels of three bytes.
    pub fn split3(pixels: &[u8], r: &mut [u8], g: &mut [u8], b: &mut [u8]) {
        for (((p, r), g), b) in pixels.chunks_exact(3).zip(r).zip(g).zip(b) {
            (*r, *g, *b) = (p[0], p[1], p[2]);
        }
    }
}

lanes! {
    /// Splits pixels of four bytes and drops the fourth.
    pub fn split4(pixels: &[u8], r: &mut [u8], g: &mut [u8], b: &mut [u8]) {
        for (((p, r), g), b) in pixels.chunks_exact(4).zip(r).zip(g).zip(b) {
            (*r, *g, *b) = (p[0], p[1], p[2]);
        }
    }
}

lanes! {
    /// Joins three planes to pixels of three bytes.
    pub fn join3(r: &[u8], g: &[u8], b: &[u8], pixels: &mut [u8]) {
        for (((p, r), g), b) in pixels.chunks_exact_mut(3).zip(r).zip(g).zip(b) {
            (p[0], p[1], p[2]) = (*r, *g, *b);
        }
    }
}

lanes! {
    /// Three parts of the nearer row of chroma and one of the other.
    pub fn lean(near: &[u8], far: &[u8], sums: &mut [u16]) {
        for ((n, f), s) in near.iter().zip(far).zip(sums) {
            *s = 3 * *n as u16 + *f as u16;
        }
    }
}

lanes! {
    /// Doubles the sums of `lean` in width.
    pub fn double_sums(sums: &[u16], out: &mut [u8]) {
        let n = sums.len();
        let (first, last) = (sums[0], sums[n - 1]);
        out[0] = ((4 * first + 8) >> 4) as u8;
        out[1] = ((3 * first + sums[1] + 7) >> 4) as u8;
        let inner = out[2..2 * n - 2].chunks_exact_mut(2);
        for (((o, l), s), r) in inner.zip(sums).zip(&sums[1..]).zip(&sums[2..]) {
            o[0] = ((3 * s + l + 8) >> 4) as u8;
            o[1] = ((3 * s + r + 7) >> 4) as u8;
        }
        out[2 * n - 2] = ((3 * last + sums[n - 2] + 8) >> 4) as u8;
        out[2 * n - 1] = ((4 * last + 7) >> 4) as u8;
    }
}

lanes! {
    /// Doubles a row of chroma in width.
    pub fn double_row(row: &[u8], out: &mut [u8]) {
        let n = row.len();
        out[0] = row[0];
        out[1] = ((3 * row[0] as u16 + row[1] as u16 + 2) >> 2) as u8;
        let inner = out[2..2 * n - 2].chunks_exact_mut(2);
        for (((o, l), s), r) in inner.zip(row).zip(&row[1..]).zip(&row[2..]) {
            o[0] = ((3 * *s as u16 + *l as u16 + 1) >> 2) as u8;
            o[1] = ((3 * *s as u16 + *r as u16 + 2) >> 2) as u8;
        }
        out[2 * n - 2] = ((3 * row[n - 1] as u16 + row[n - 2] as u16 + 1) >> 2) as u8;
        out[2 * n - 1] = row[n - 1];
    }
}

/// A factor in 16 fraction bits.
const fn fix(x: f64) -> i32 {
    (x * 65536.0 + 0.5) as i32
}

/// `x` times a factor of less than half in 16 fraction bits, rounded to the nearest: what two 16-bit instructions do.
#[inline(always)]
fn part(x: i16, factor: i32) -> i16 {
    ((((2 * x) as i32 * factor) >> 16) as i16 + 1) >> 1
}

lanes! {
    /// Turns YCbCr into RGB.
    pub fn colour(y: &[u8], cb: &[u8], cr: &[u8], r: &mut [u8], g: &mut [u8], b: &mut [u8]) {
        const ONE: i32 = 1 << 16;
        let n = y.len();
        let (cb, cr, r, g, b) = (&cb[..n], &cr[..n], &mut r[..n], &mut g[..n], &mut b[..n]);
        for i in 0..n {
            let (y, u, v) = (y[i] as i16, cb[i] as i16 - 128, cr[i] as i16 - 128);
            // 1.402, 1.772 and 0.71414 without the whole numbers next to them: the rest fits into 16 bits.
            let red = y + v + part(v, fix(1.40200) - ONE);
            let blue = y + 2 * u + part(u, fix(1.77200) - 2 * ONE);
            let sum = -fix(0.34414) * u as i32 + (ONE - fix(0.71414)) * v as i32 + ONE / 2;
            let green = y - v + (sum >> 16) as i16;
            r[i] = red.clamp(0, 255) as u8;
            g[i] = green.clamp(0, 255) as u8;
            b[i] = blue.clamp(0, 255) as u8;
        }
    }
}
