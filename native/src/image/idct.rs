//! The inverse DCT of JPEG, as libjpeg's accurate integer one computes it ("islow"), eight columns at a time.
//!
//! libjpeg's own vector code is in an assembler's language that needs a tool of its own to build; without it a third of
//! the time of decoding goes into this one function. It does arithmetic on 64 numbers: nothing in it depends on them but
//! the 64 bytes it returns.
use std::arch::x86_64::*;

/// Fraction bits of the constants, and those that are kept between the passes.
const CONST_BITS: i32 = 13;
const PASS1_BITS: i32 = 2;

/// Reports whether `block` may be called.
pub fn can_run() -> bool {
    is_x86_feature_detected!("avx2")
}

type Rows = [__m256i; 8];

/// `a * ka + b * kb`, for numbers of 16 bits: what libjpeg's vector code takes them for, too.
#[inline]
#[target_feature(enable = "avx2")]
fn sum(pair: __m256i, ka: i16, kb: i16) -> __m256i {
    _mm256_madd_epi16(pair, _mm256_set1_epi32((kb as i32) << 16 | ka as u16 as i32))
}

/// Two numbers of 16 bits in each lane.
#[inline]
#[target_feature(enable = "avx2")]
fn pair(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blend_epi16::<0b1010_1010>(a, _mm256_slli_epi32(b, 16))
}

/// One pass over the rows of a block: each lane is transformed by itself. The result is rounded off by SHIFT bits. The
/// constants are sums of sqrt(2) times sines and cosines of multiples of pi/16.
#[inline]
#[target_feature(enable = "avx2")]
fn pass<const SHIFT: i32>(x: Rows) -> Rows {
    let (add, sub) = (|a, b| _mm256_add_epi32(a, b), |a, b| _mm256_sub_epi32(a, b));
    let z = pair(x[2], x[6]);
    let (t2, t3) = (sum(z, 4433, 4433 - 15137), sum(z, 4433 + 6270, 4433));
    let half = _mm256_set1_epi32(1 << (SHIFT - 1));
    let t0 = add(_mm256_slli_epi32(add(x[0], x[4]), CONST_BITS), half);
    let t1 = add(_mm256_slli_epi32(sub(x[0], x[4]), CONST_BITS), half);
    let even = [add(t0, t3), add(t1, t2), sub(t1, t2), sub(t0, t3)];
    let z = pair(add(x[7], x[3]), add(x[5], x[1]));
    let (z3, z4) = (sum(z, 9633 - 16069, 9633), sum(z, 9633, 9633 - 3196));
    let (a, b) = (pair(x[7], x[1]), pair(x[5], x[3]));
    let odd = [
        add(sum(a, -7373, 12299 - 7373), z4),
        add(sum(b, -20995, 25172 - 20995), z3),
        add(sum(b, 16819 - 20995, -20995), z4),
        add(sum(a, 2446 - 7373, -7373), z3),
    ];
    let up = |k: usize| _mm256_srai_epi32(add(even[k], odd[k]), SHIFT);
    let down = |k: usize| _mm256_srai_epi32(sub(even[k], odd[k]), SHIFT);
    [up(0), up(1), up(2), up(3), down(3), down(2), down(1), down(0)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn transpose(x: Rows) -> Rows {
    let low = |a: usize, b: usize| _mm256_unpacklo_epi32(x[a], x[b]);
    let high = |a: usize, b: usize| _mm256_unpackhi_epi32(x[a], x[b]);
    let pairs = [low(0, 1), high(0, 1), low(2, 3), high(2, 3), low(4, 5), high(4, 5), low(6, 7), high(6, 7)];
    let low = |a: usize, b: usize| _mm256_unpacklo_epi64(pairs[a], pairs[b]);
    let high = |a: usize, b: usize| _mm256_unpackhi_epi64(pairs[a], pairs[b]);
    let fours = [low(0, 2), high(0, 2), low(1, 3), high(1, 3), low(4, 6), high(4, 6), low(5, 7), high(5, 7)];
    let first = |a: usize| _mm256_permute2x128_si256::<0x20>(fours[a], fours[a + 4]);
    let second = |a: usize| _mm256_permute2x128_si256::<0x31>(fours[a], fours[a + 4]);
    [first(0), first(1), first(2), first(3), second(0), second(1), second(2), second(3)]
}

/// The samples of a block of coefficients. Needs `can_run`.
#[target_feature(enable = "avx2")]
pub fn block(coefficients: &[i16; 64], quant: &[u16; 64]) -> [[u8; 8]; 8] {
    let mut rows = [_mm256_setzero_si256(); 8];
    let (coefficients, _) = coefficients.as_chunks::<8>();
    let (quant, _) = quant.as_chunks::<8>();
    for ((row, c), q) in rows.iter_mut().zip(coefficients).zip(quant) {
        // Arrays of eight 16-bit numbers are what the vector type is.
        let (c, q): (__m128i, __m128i) = unsafe { (std::mem::transmute(*c), std::mem::transmute(*q)) };
        *row = _mm256_cvtepi16_epi32(_mm_mullo_epi16(c, q));
    }
    let rows = transpose(pass::<{ CONST_BITS - PASS1_BITS }>(rows));
    let rows = transpose(pass::<{ CONST_BITS + PASS1_BITS + 3 }>(rows));
    let mut out = [[0u8; 8]; 8];
    for (pair, out) in rows.chunks_exact(2).zip(out.chunks_exact_mut(2)) {
        // Saturating on the way down to bytes, around zero; then the middle is put where it belongs.
        let words = _mm256_packs_epi32(pair[0], pair[1]);
        let bytes = _mm256_packs_epi16(words, words);
        let bytes = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
        let bytes: [u8; 32] = unsafe { std::mem::transmute(bytes) };
        // The first four samples of each row are in the lower half of the register, the others in the upper one.
        for (k, row) in out.iter_mut().enumerate() {
            row[..4].copy_from_slice(&bytes[4 * k..4 * k + 4]);
            row[4..].copy_from_slice(&bytes[16 + 4 * k..16 + 4 * k + 4]);
        }
    }
    out
}

/// Called by libjpeg for every block; only after `portico_idct_can_run` has said 1.
///
/// Safety: both tables have 64 values, and there are eight rows with eight bytes from `column` on.
#[no_mangle]
pub unsafe extern "C" fn portico_idct(coefficients: *const i16, quant: *const u16, rows: *const *mut u8, column: u32) {
    let samples = block(&*coefficients.cast(), &*quant.cast());
    for (i, samples) in samples.into_iter().enumerate() {
        (*rows.add(i)).add(column as usize).cast::<[u8; 8]>().write(samples);
    }
}
