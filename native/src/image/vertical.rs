//! The vertical pass of resizing: one output row of several input rows.
use super::lanes::lanes;

/// Reports whether the machine has the instructions of `run`.
pub fn can_run() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2");
    #[allow(unreachable_code)]
    false
}

/// Two rows, and their weights as one instruction takes them.
pub struct Pair<'a> {
    rows: [&'a [u8]; 2],
    weights: i32,
}

/// Puts rows and their weights, which are 16-bit integers, into pairs.
pub fn pair<'a>(mut rows: impl Iterator<Item = &'a [u8]>, weights: &[i32]) -> Vec<Pair<'a>> {
    let pair = |weights: &[i32]| {
        let first = rows.next()?;
        // A row without a partner is taken twice, the second time with no weight.
        let (second, weight) = weights.get(1).map_or(Some((first, 0)), |&w| Some((rows.next()?, w)))?;
        Some(Pair { rows: [first, second], weights: (weights[0] as u16 as u32 | (weight as u16 as u32) << 16) as i32 })
    };
    weights.chunks(2).map_while(pair).collect()
}

/// Makes a row; needs `can_run`. All rows have at least `width` bytes rounded up to 32.
pub fn run(pairs: &[Pair], bits: u32, width: usize, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        let reach = width.next_multiple_of(32);
        let whole = |p: &Pair| p.rows.iter().all(|r| r.len() >= reach);
        assert!(can_run() && out.len() >= reach && pairs.iter().all(whole));
        // Every read and write has just been seen to stay inside.
        unsafe { run_avx2(pairs, bits, width, out) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (pairs, bits, width, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn run_avx2(pairs: &[Pair], bits: u32, width: usize, out: &mut [u8]) {
    use std::arch::x86_64::*;
    let half = _mm256_set1_epi32(1 << (bits - 1));
    let shift = _mm_cvtsi32_si128(bits as i32);
    let zero = _mm256_setzero_si256();
    for x in (0..width).step_by(32) {
        let mut sums = [half; 4];
        for pair in pairs {
            let upper = _mm256_loadu_si256(pair.rows[0].as_ptr().add(x).cast());
            let lower = _mm256_loadu_si256(pair.rows[1].as_ptr().add(x).cast());
            let weight = _mm256_set1_epi32(pair.weights);
            let low = _mm256_unpacklo_epi8(upper, lower);
            let high = _mm256_unpackhi_epi8(upper, lower);
            let parts = [
                _mm256_unpacklo_epi8(low, zero),
                _mm256_unpackhi_epi8(low, zero),
                _mm256_unpacklo_epi8(high, zero),
                _mm256_unpackhi_epi8(high, zero),
            ];
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(part, weight));
            }
        }
        let [a, b, c, d] = sums.map(|s| _mm256_sra_epi32(s, shift));
        let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        _mm256_storeu_si256(out.as_mut_ptr().add(x).cast(), bytes);
    }
}

/// Weights of any size.
pub fn run_wide<'a>(
    rows: impl Iterator<Item = &'a [u8]>,
    weights: &[i32],
    bits: u32,
    sums: &mut Vec<i32>,
    out: &mut [u8],
) {
    sums.clear();
    sums.resize(out.len(), 1 << (bits - 1));
    for (row, weight) in rows.zip(weights) {
        add(row, *weight, sums);
    }
    round_off(sums, bits, out);
}

lanes! {
    /// Adds a weighted row.
    pub fn add(row: &[u8], weight: i32, sums: &mut [i32]) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += *value as i32 * weight;
        }
    }
}

lanes! {
    /// Takes the fraction off and keeps to bytes.
    pub fn round_off(sums: &[i32], bits: u32, out: &mut [u8]) {
        for (o, sum) in out.iter_mut().zip(sums) {
            *o = (*sum >> bits).clamp(0, 255) as u8;
        }
    }
}
