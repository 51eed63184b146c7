//! The horizontal pass of resizing.
//!
//! With 16-bit weights and a scale of at most about four, eight outputs are made at a time: a shuffle brings each pair of
//! their inputs together, and one multiply-add takes both. Everything else goes output by output.
use super::axis::Axis;
use super::lanes::lanes;
use super::rows::SLACK;

/// A prepared pass.
pub struct Plan {
    axis: Axis,
    blocks: Vec<Block>, // empty: output by output
    pairs: Vec<[i16; 16]>,
    reads: usize, // bytes of a row that `blocks` read
    short: Vec<i16>, // all weights as 16-bit integers; empty: they don't fit
}

/// Eight outputs. Those of each half have all their inputs within 16 bytes, for every pair.
struct Block {
    start: [u32; 2],   // where each half begins to read
    shuffle: [u8; 32], // brings the first pair of each output together
    first: u32,        // index of its weights in `pairs`
    count: u32,        // how many pairs
}

impl Plan {
    /// Prepares a pass. `vector` allows vector instructions, for axes whose weights are 16-bit integers.
    pub fn new(axis: Axis, vector: bool) -> Plan {
        let mut plan = Plan { axis, blocks: vec![], pairs: vec![], reads: 0, short: vec![] };
        let fits = |w: &i32| i16::try_from(*w).is_ok();
        if !plan.axis.weights.iter().all(fits) {
            return plan;
        }
        plan.short = plan.axis.weights.iter().map(|&w| w as i16).collect();
        #[cfg(target_arch = "x86_64")]
        if vector && is_x86_feature_detected!("avx2") {
            plan.pack();
        }
        let _ = vector;
        plan
    }

    /// Arranges weights for `blocks`, or leaves them empty when a half of a block reads too far apart.
    #[cfg(target_arch = "x86_64")]
    fn pack(&mut self) {
        let axis = &self.axis;
        let last = axis.start.len() - 1;
        for b in (0..=last).step_by(8) {
            let output = |k: usize| (b + k).min(last);
            let start = [axis.start[output(0)], axis.start[output(4)]];
            let count = (0..8).map(|k| axis.count[output(k)]).max().unwrap_or(0).div_ceil(2);
            let mut shuffle = [0u8; 32];
            for k in 0..8 {
                let apart = axis.start[output(k)] - start[k / 4];
                if apart > 14 {
                    self.blocks.clear();
                    return;
                }
                let at = k / 4 * 16 + k % 4 * 4;
                shuffle[at..at + 4].copy_from_slice(&[apart as u8, 0x80, apart as u8 + 1, 0x80]);
            }
            let reach = start[0].max(start[1]) as usize + 2 * count.saturating_sub(1) as usize + 16;
            self.reads = self.reads.max(reach);
            self.blocks.push(Block { start, shuffle, first: self.pairs.len() as u32, count });
            for j in 0..count as usize {
                let mut pair = [0i16; 16];
                for k in 0..8 {
                    for t in 0..2 {
                        let weight = axis.of(output(k)).get(2 * j + t);
                        pair[2 * k + t] = weight.map_or(0, |&w| w as i16);
                    }
                }
                self.pairs.push(pair);
            }
        }
    }

    /// Makes one row of three planes. Rows have SLACK bytes after their last pixel.
    pub fn run(&self, source: [&[u8]; 3], out: [&mut [u8]; 3]) {
        #[cfg(target_arch = "x86_64")]
        if !self.blocks.is_empty() {
            debug_assert!(self.reads <= source[0].len());
            if source.iter().all(|s| s.len() >= self.reads) && out.iter().all(|o| o.len() >= 8 * self.blocks.len()) {
                // Every read and write has just been seen to stay inside.
                return unsafe { self.run_avx2(source, out) };
            }
        }
        for (source, out) in source.into_iter().zip(out) {
            let out = &mut out[..self.axis.start.len()];
            if self.short.is_empty() {
                each_wide(&self.axis, source, out);
            } else {
                each_short(&self.axis, &self.short, source, out);
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn run_avx2(&self, source: [&[u8]; 3], out: [&mut [u8]; 3]) {
        use std::arch::x86_64::*;
        const _: () = assert!(SLACK >= 32);
        let half = _mm256_set1_epi32(1 << (self.axis.bits - 1));
        let bits = _mm_cvtsi32_si128(self.axis.bits as i32);
        let source = source.map(<[u8]>::as_ptr);
        let out = out.map(<[u8]>::as_mut_ptr);
        for (i, block) in self.blocks.iter().enumerate() {
            let shuffle = _mm256_loadu_si256(block.shuffle.as_ptr().cast());
            let mut sums = [half; 3];
            for j in 0..block.count as usize {
                let weights = _mm256_loadu_si256(self.pairs[block.first as usize + j].as_ptr().cast());
                for (sum, source) in sums.iter_mut().zip(source) {
                    let low = _mm_loadu_si128(source.add(block.start[0] as usize + 2 * j).cast());
                    let high = _mm_loadu_si128(source.add(block.start[1] as usize + 2 * j).cast());
                    let both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
                    let pairs = _mm256_shuffle_epi8(both, shuffle);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, weights));
                }
            }
            for (sum, out) in sums.into_iter().zip(out) {
                let whole = _mm256_sra_epi32(sum, bits);
                let words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
                _mm_storel_epi64(out.add(8 * i).cast(), _mm_packus_epi16(words, words));
            }
        }
    }
}

lanes! {
    /// Output by output, with 16-bit weights.
    pub fn each_short(axis: &Axis, weights: &[i16], source: &[u8], out: &mut [u8]) {
        for (i, o) in out.iter_mut().enumerate() {
            let (start, count) = (axis.start[i] as usize, axis.count[i] as usize);
            let pairs = source[start..start + count].iter().zip(&weights[i * axis.taps..][..count]);
            let sum: i32 = pairs.map(|(&s, &w)| s as i32 * w as i32).sum();
            *o = ((sum + (1 << (axis.bits - 1))) >> axis.bits).clamp(0, 255) as u8;
        }
    }
}

lanes! {
    /// Output by output, with 32-bit weights.
    pub fn each_wide(axis: &Axis, source: &[u8], out: &mut [u8]) {
        for (i, o) in out.iter_mut().enumerate() {
            let start = axis.start[i] as usize;
            let weights = axis.of(i);
            let sum: i32 = source[start..start + weights.len()].iter().zip(weights).map(|(&s, &w)| s as i32 * w).sum();
            *o = ((sum + (1 << (axis.bits - 1))) >> axis.bits).clamp(0, 255) as u8;
        }
    }
}
