//! The inverse DCT of our own is libjpeg's: for all that an encoder may write, and for the nonsense that only a forged file
//! holds it stays within its block and does what is said of it.
#![cfg(target_arch = "x86_64")]
mod common;

use common::Random;
use portico_native::image::idct::{self, portico_idct};
use portico_native::image::jpeg::Jpeg;
use portico_native::image::rows::{stride, Rows};

/// Blocks of a test image, in a row and in all.
const WIDE: usize = 32;
const BLOCKS: usize = WIDE * 64;

type Block = [i16; 64];

/// One pass of the accurate integer transform, in numbers that don't overflow. `narrow` cuts its inputs to 16 bits where
/// vector code multiplies such.
fn pass(x: [i64; 8], shift: u32, narrow: bool) -> [i64; 8] {
    let cut = |v: i64| if narrow { v as i16 as i64 } else { v };
    let even = {
        let (z2, z3) = (cut(x[2]), cut(x[6]));
        let (t2, t3) = (z2 * 4433 + z3 * (4433 - 15137), z2 * (4433 + 6270) + z3 * 4433);
        let (t0, t1) = ((x[0] + x[4]) << 13, (x[0] - x[4]) << 13);
        [t0 + t3, t1 + t2, t1 - t2, t0 - t3]
    };
    let (z3, z4) = (cut(x[7] + x[3]), cut(x[5] + x[1]));
    let (z3, z4) = (z3 * (9633 - 16069) + z4 * 9633, z3 * 9633 + z4 * (9633 - 3196));
    let (a, b, c, d) = (cut(x[7]), cut(x[5]), cut(x[3]), cut(x[1]));
    let odd = [
        d * (12299 - 7373) + a * -7373 + z4,
        c * (25172 - 20995) + b * -20995 + z3,
        b * (16819 - 20995) + c * -20995 + z4,
        a * (2446 - 7373) + d * -7373 + z3,
    ];
    // Vector code adds in 32 bits.
    let sum = |v: i64| (if narrow { v as i32 as i64 } else { v }) >> shift;
    let half = 1 << (shift - 1);
    std::array::from_fn(|k| if k < 4 { sum(even[k] + odd[k] + half) } else { sum(even[7 - k] - odd[7 - k] + half) })
}

/// The transform's values, before they are cut to bytes.
fn transform(coefficients: &Block, quant: &[u16; 64], narrow: bool) -> [i64; 64] {
    let mut work = [0; 64];
    for (w, (c, q)) in work.iter_mut().zip(coefficients.iter().zip(quant)) {
        let product = *c as i64 * if narrow { *q as i16 as i64 } else { *q as i64 };
        *w = if narrow { product as i16 as i64 } else { product };
    }
    for (shift, down) in [(11, true), (18, false)] {
        for i in 0..8 {
            let at = |k: usize| if down { 8 * k + i } else { 8 * i + k };
            let out = pass(std::array::from_fn(|k| work[at(k)]), shift, narrow);
            out.iter().enumerate().for_each(|(k, v)| work[at(k)] = *v);
        }
    }
    work
}

/// Coefficients as they come from images, sparse, dense, and of any size up to `most` bits.
fn random(r: &mut Random, most: u32) -> Block {
    let (count, bits) = (1 + r.below(64), 1 + r.below(most as usize) as u32);
    let mut block = [0; 64];
    for _ in 0..count {
        let v = r.below(1 << bits) as i32;
        block[r.below(64)] = if r.below(2) == 0 { v } else { -v }.clamp(-32767, 32767) as i16;
    }
    block
}

/// Bits of a scan, with zeros stuffed behind bytes of ones.
#[derive(Default)]
struct Bits(Vec<u8>, u32, u32);

impl Bits {
    fn put(&mut self, value: u32, count: u32) {
        for i in (0..count).rev() {
            self.1 = self.1 << 1 | (value >> i & 1);
            self.2 += 1;
            if self.2 == 8 {
                self.0.push(self.1 as u8);
                if self.1 == 0xff {
                    self.0.push(0);
                }
                (self.1, self.2) = (0, 0);
            }
        }
    }

    /// A symbol, which is its own code of nine bits, and the number behind it.
    fn number(&mut self, run: u32, v: i32) {
        let size = 32 - v.unsigned_abs().leading_zeros();
        self.put(run << 4 | size, 9);
        self.put(if v < 0 { v - 1 } else { v } as u32, size);
    }
}

const ZIGZAG: [usize; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28, 35, 42,
    49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// A gray JPEG with these blocks. The difference of two first coefficients is up to 15 bits long.
fn file(blocks: &[Block], quant: &[u16; 64]) -> Vec<u8> {
    let mut out = vec![0xff, 0xd8, 0xff, 0xdb, 0, 131, 0x10];
    ZIGZAG.iter().for_each(|&i| out.extend(quant[i].to_be_bytes()));
    let (w, h) = (8 * WIDE as u16, 8 * (blocks.len() / WIDE) as u16);
    out.extend([0xff, 0xc1, 0, 11, 8]);
    out.extend([h.to_be_bytes(), w.to_be_bytes()].concat());
    out.extend([1, 1, 0x11, 0]);
    for (table, symbols) in [(0u8, 16u8), (0x10, 255)] {
        out.extend([0xff, 0xc4, 0, 19 + symbols, table, 0, 0, 0, 0, 0, 0, 0, 0, symbols, 0, 0, 0, 0, 0, 0, 0]);
        if symbols == 255 {
            let at = out.len() - 19;
            out[at..at + 2].copy_from_slice(&(19u16 + 255).to_be_bytes());
        }
        out.extend(0..symbols);
    }
    out.extend([0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0]);
    let (mut bits, mut before) = (Bits::default(), 0);
    for block in blocks {
        bits.number(0, block[0] as i32 - before);
        before = block[0] as i32;
        let mut run = 0;
        for &i in &ZIGZAG[1..] {
            if block[i] == 0 {
                run += 1;
                continue;
            }
            while run > 15 {
                bits.put(0xf0, 9);
                run -= 16;
            }
            bits.number(run, block[i] as i32);
            run = 0;
        }
        if run > 0 {
            bits.put(0, 9);
        }
    }
    bits.put(0x7f, 7);
    out.append(&mut bits.0);
    out.extend([0xff, 0xd9]);
    out
}

fn decode(file: &[u8], narrow: bool) -> Vec<u8> {
    let mut jpeg = Jpeg::new().unwrap();
    let mut open = jpeg.open(file, narrow).unwrap_or_else(|e| panic!("{e:?}"));
    let (w, h) = open.size();
    let mut planes = vec![vec![0; stride(w)]; 3];
    let mut out = vec![];
    for _ in 0..h {
        let [r, g, b] = &mut planes[..] else { unreachable!() };
        open.next([r, g, b]).unwrap_or_else(|e| panic!("{e:?}"));
        out.extend(&planes[0][..w]);
    }
    out
}

/// Files of random coefficients have the samples that libjpeg's own transform ("islow") makes of them, wherever that
/// doesn't run over: its last step wraps around what is more than four times too large.
#[test]
fn samples_are_the_librarys() {
    if !idct::can_run() {
        return;
    }
    let mut r = Random(7);
    let mut compared = 0;
    for round in 0..24u32 {
        let mut quant = [0; 64];
        quant.iter_mut().for_each(|q| *q = 1 + r.below(1 << (round % 9)) as u16);
        let blocks: Vec<Block> = (0..BLOCKS)
            .map(|_| {
                let mut block = random(&mut r, if round % 3 == 2 { 14 } else { 11 });
                block[0] = block[0].clamp(-16000, 16000); // for its difference to the next one
                block
            })
            .collect();
        let file = file(&blocks, &quant);
        let (ours, theirs) = (decode(&file, false), decode(&file, true));
        for (i, block) in blocks.iter().enumerate() {
            let exact = transform(block, &quant, false);
            if exact != transform(block, &quant, true) || exact.iter().any(|v| !(-512..512).contains(v)) {
                continue;
            }
            compared += 1;
            for (k, v) in exact.iter().enumerate() {
                let at = (i / WIDE * 8 + k / 8) * 8 * WIDE + i % WIDE * 8 + k % 8;
                let want = (v + 128).clamp(0, 255) as u8;
                assert_eq!((ours[at], theirs[at]), (want, want), "round {round}, block {i}, sample {k}: {block:?} {quant:?}");
            }
        }
    }
    assert!(compared > 5_000, "only {compared} blocks compared");
}

/// Whatever the coefficients and tables are, extremes of both included, 64 samples are written to where they belong and
/// nothing beside them; and they are those of arithmetic in 16 and 32 bits that ends in the nearest byte.
#[test]
fn extremes_stay_in_their_block() {
    if !idct::can_run() {
        return;
    }
    const EXTREMES: [i16; 6] = [i16::MIN, i16::MIN + 1, -1, 0, 1, i16::MAX];
    let mut r = Random(11);
    for round in 0..200_000 {
        let (mut block, mut quant) = (random(&mut r, 15), [0u16; 64]);
        for (c, q) in block.iter_mut().zip(&mut quant) {
            match r.below(4) {
                0 => (*c, *q) = (EXTREMES[r.below(6)], [1, 255, 32767, 32768, 65535][r.below(5)]),
                1 => *q = r.below(65536) as u16,
                _ => *q = 1 + r.below(255) as u16,
            }
        }
        if round < 6 {
            (block, quant) = ([EXTREMES[round]; 64], [65535; 64]);
        }
        let (column, width) = (r.below(9), 8 + r.below(9) + 9);
        let mut picture = vec![0xa5u8; 10 * width];
        let rows: Vec<*mut u8> = picture.chunks_mut(width).skip(1).take(8).map(|row| row.as_mut_ptr()).collect();
        unsafe { portico_idct(block.as_ptr(), quant.as_ptr(), rows.as_ptr(), column as u32) };
        let model = transform(&block, &quant, true);
        for (at, got) in picture.iter().enumerate() {
            let (y, x) = (at / width, at % width);
            let inside = (1..9).contains(&y) && (column..column + 8).contains(&x);
            let want = if inside { (model[(y - 1) * 8 + x - column].clamp(-128, 127) + 128) as u8 } else { 0xa5 };
            assert_eq!(*got, want, "round {round}, {x} {y}: {block:?} {quant:?}");
        }
    }
}
