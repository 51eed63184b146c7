//! Weights of resampling along one axis, by the two rules in use.
//!
//! Both take the same filters with the same support, widened when an image gets smaller. They differ in how the weights
//! are rounded, which decides single bits of the result: PyTorch's to 16-bit integers with as many fraction bits as the
//! largest weight allows, Pillow's to 32-bit integers with 22 fraction bits.

/// A filter, numbered as in Pillow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filter {
    Lanczos = 1,
    Bilinear = 2,
    Bicubic = 3,
    Box = 4,
    Hamming = 5,
}

impl Filter {
    pub fn from_number(n: i32) -> Option<Filter> {
        [Filter::Lanczos, Filter::Bilinear, Filter::Bicubic, Filter::Box, Filter::Hamming]
            .into_iter()
            .find(|&f| f as i32 == n)
    }

    fn support(self) -> f64 {
        match self {
            Filter::Lanczos => 3.0,
            Filter::Bicubic => 2.0,
            Filter::Bilinear | Filter::Hamming => 1.0,
            Filter::Box => 0.5,
        }
    }

    fn at(self, x: f64) -> f64 {
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI) };
        match self {
            Filter::Box => (x > -0.5 && x <= 0.5) as u8 as f64,
            Filter::Bilinear => (1.0 - x.abs()).max(0.0),
            Filter::Hamming if x == 0.0 => 1.0,
            Filter::Hamming if x.abs() >= 1.0 => 0.0,
            Filter::Hamming => {
                let t = x.abs() * std::f64::consts::PI;
                t.sin() / t * (0.54 + 0.46 * t.cos())
            }
            Filter::Bicubic => cubic(x.abs()),
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Filter::Lanczos => 0.0,
        }
    }
}

fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// How weights are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    Torch,
    Pillow,
}

/// The weights of one axis. Output `i` is made of `count[i]` inputs from `start[i]` on.
pub struct Axis {
    pub start: Vec<u32>,
    pub count: Vec<u32>,
    pub weights: Vec<i32>, // `taps` for each output
    pub taps: usize,
    pub bits: u32, // fraction bits of the weights
}

impl Axis {
    pub fn new(from: usize, to: usize, filter: Filter, rounding: Rounding) -> Axis {
        let scale = from as f64 / to as f64;
        let wide = scale.max(1.0);
        let support = filter.support() * wide;
        let inverse = 1.0 / wide;
        let taps = support.ceil() as usize * 2 + 1;
        let mut real = vec![0f64; taps * to];
        let (mut start, mut count) = (Vec::with_capacity(to), Vec::with_capacity(to));
        for (i, row) in real.chunks_exact_mut(taps).enumerate() {
            let centre = (i as f64 + 0.5) * scale;
            let low = ((centre - support + 0.5) as i64).max(0) as usize;
            let high = ((centre + support + 0.5) as i64).clamp(0, from as i64) as usize;
            let row = &mut row[..high - low];
            for (j, w) in row.iter_mut().enumerate() {
                *w = filter.at(((j + low) as f64 - centre + 0.5) * inverse);
            }
            let sum: f64 = row.iter().sum();
            if sum != 0.0 {
                row.iter_mut().for_each(|w| *w /= sum);
            }
            start.push(low as u32);
            count.push((high - low) as u32);
        }
        let bits = match rounding {
            Rounding::Pillow => 22,
            Rounding::Torch => fraction_bits(&real),
        };
        let one = (1i64 << bits) as f64;
        let round = |w: &f64| if *w < 0.0 { (w * one - 0.5) as i32 } else { (w * one + 0.5) as i32 };
        Axis { start, count, weights: real.iter().map(round).collect(), taps, bits }
    }

    /// The weights of output `i`.
    pub fn of(&self, i: usize) -> &[i32] {
        &self.weights[i * self.taps..][..self.count[i] as usize]
    }
}

/// The most fraction bits with which the largest weight is a 16-bit integer.
fn fraction_bits(weights: &[f64]) -> u32 {
    let largest = weights.iter().copied().fold(f64::MIN, f64::max);
    let fits = |bits: u32| ((0.5 + largest * (1i64 << (bits + 1)) as f64) as i64) < 1 << 15;
    (0..22).find(|&bits| !fits(bits)).unwrap_or(22)
}
