//! Byte-pair encoding of one word: of all adjacent pairs that may merge, the one of lowest rank goes first, the leftmost
//! on a tie.
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No token, and no merge: larger than every id and rank.
pub const NONE: u32 = u32::MAX;

/// Limits of the packed table.
pub const ID_BITS: u32 = 20;
pub const RANK_BITS: u32 = 24;

/// Words of more symbols go through the heap; below, scanning all ranks is quicker.
const SCAN_LIMIT: usize = 96;

/// Bits of a position within such a word.
const POSITION_BITS: u32 = 31 - RANK_BITS;
const _: () = assert!(SCAN_LIMIT <= 1 << POSITION_BITS && SCAN_LIMIT % 8 == 0);

/// A finalizer that spreads all bits of `x` into the upper half.
#[inline(always)]
pub fn mix(x: u64) -> u64 {
    let h = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ (h >> 32)
}

/// Which pairs merge, at which rank, into what.
pub struct Merges {
    /// Open addressing. A slot is left id, right id, rank, from the top; packed so that a large vocabulary's table is
    /// 2 MB and mostly stays in the processor's cache, which decides the speed of long words.
    slots: Vec<u64>,
    /// By rank: the id of the merged token.
    merged: Vec<u32>,
    /// By byte: its token, or NONE.
    byte_id: [u32; 256],
    /// By two bytes: the rank of their pair.
    byte_rank: Vec<u32>,
}

const EMPTY: u64 = u64::MAX;

/// Memory that merging uses over and over.
#[derive(Default)]
pub struct Scratch {
    ids: Vec<u32>,
    ranks: Vec<u32>,
    next: Vec<u32>,
    prev: Vec<u32>,
    heap: BinaryHeap<Reverse<u64>>, // rank, then position
}

impl Scratch {
    /// The longest word, in symbols, there is memory for.
    pub fn symbols(&self) -> usize {
        self.ids.capacity().max(self.heap.capacity())
    }
}

impl Merges {
    /// `merges` by rank: left, right, merged. Ids have to fit ID_BITS and ranks RANK_BITS.
    pub fn new(byte_id: [u32; 256], merges: &[(u32, u32, u32)]) -> Self {
        let size = (merges.len() * 3 / 2).next_power_of_two().max(16);
        let mut table = Merges {
            slots: vec![EMPTY; size],
            merged: merges.iter().map(|m| m.2).collect(),
            byte_id,
            byte_rank: Vec::new(),
        };
        for (rank, &(left, right, _)) in merges.iter().enumerate() {
            let slot = table.slot(left, right);
            // The last of equal pairs counts, as in the reference's map.
            table.slots[slot] = key(left, right) << RANK_BITS | rank as u64;
        }
        table.byte_rank = (0..1 << 16).map(|pair| table.rank(byte_id[pair >> 8], byte_id[pair & 0xff])).collect();
        table
    }

    /// The slot that holds the pair, or the empty one where it would be.
    #[inline(always)]
    fn slot(&self, left: u32, right: u32) -> usize {
        let key = key(left, right);
        let mask = self.slots.len() - 1;
        let mut at = mix(key) as usize & mask;
        while self.slots[at] >> RANK_BITS != key && self.slots[at] != EMPTY {
            at = (at + 1) & mask;
        }
        at
    }

    /// The rank of a pair, or NONE.
    #[inline(always)]
    fn rank(&self, left: u32, right: u32) -> u32 {
        if left == NONE || right == NONE {
            return NONE;
        }
        match self.slots[self.slot(left, right)] {
            EMPTY => NONE,
            slot => slot as u32 & ((1 << RANK_BITS) - 1),
        }
    }

    /// Appends the ids of `word` to `out`.
    pub fn encode(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch { ids, ranks, .. } = scratch;
        ids.clear();
        ranks.clear();
        let mut last = None;
        for &byte in word {
            let id = self.byte_id[byte as usize];
            if id == NONE {
                continue; // as the reference does where there is no unknown token
            }
            if let Some(last) = last {
                ranks.push(self.byte_rank[(last as usize) << 8 | byte as usize]);
            }
            ids.push(id);
            last = Some(byte);
        }
        if ids.len() > SCAN_LIMIT {
            self.merge_by_heap(scratch);
        } else {
            self.merge_by_scan(scratch);
        }
        out.extend_from_slice(&scratch.ids);
    }

    /// Positions don't move: a symbol is merged into the one before it. A candidate is the rank of the pair at a position
    /// followed by that position, so that one minimum finds both, and signed, for which every processor has a vector
    /// instruction.
    fn merge_by_scan(&self, scratch: &mut Scratch) {
        let Scratch { ids, ranks, .. } = scratch;
        let count = ids.len();
        let candidate = |rank: u32, at: usize| if rank == NONE { i32::MAX } else { (rank << POSITION_BITS) as i32 | at as i32 };
        let mut best = [i32::MAX; SCAN_LIMIT];
        let (mut next, mut prev) = ([0u8; SCAN_LIMIT], [0u8; SCAN_LIMIT]);
        for at in 0..count {
            best[at] = ranks.get(at).map_or(i32::MAX, |&rank| candidate(rank, at));
            next[at] = at as u8 + 1;
            prev[at] = (at as u8).saturating_sub(1);
        }
        // Whole vectors: what lies beyond the last pair never wins.
        let best = &mut best[..count.next_multiple_of(8)];
        loop {
            let lowest = best.iter().fold(i32::MAX, |low, &c| low.min(c));
            if lowest == i32::MAX {
                break;
            }
            let (at, rank) = (lowest as usize % (1 << POSITION_BITS), lowest >> POSITION_BITS);
            let gone = next[at] as usize;
            let after = next[gone] as usize;
            ids[at] = self.merged[rank as usize];
            ids[gone] = NONE;
            next[at] = after as u8;
            best[gone] = i32::MAX;
            best[at] = i32::MAX;
            if after < count {
                prev[after] = at as u8;
                best[at] = candidate(self.rank(ids[at], ids[after]), at);
            }
            if at > 0 {
                let before = prev[at] as usize;
                best[before] = candidate(self.rank(ids[before], ids[at]), before);
            }
        }
        ids.retain(|&id| id != NONE);
    }

    /// The same in n log n. A merged symbol becomes NONE; an entry of the heap is stale when the pair at its position
    /// has another rank by now.
    fn merge_by_heap(&self, scratch: &mut Scratch) {
        let Scratch { ids, ranks, next, prev, heap } = scratch;
        let count = ids.len();
        next.clear();
        next.extend(1..=count as u32);
        prev.clear();
        prev.extend((0..count as u32).map(|i| i.wrapping_sub(1))); // the first has NONE
        heap.clear();
        let entry = |rank: u32, at: usize| Reverse((rank as u64) << 32 | at as u64);
        heap.extend(ranks.iter().enumerate().filter(|(_, &rank)| rank != NONE).map(|(at, &rank)| entry(rank, at)));
        while let Some(Reverse(top)) = heap.pop() {
            let (rank, at) = ((top >> 32) as u32, (top & 0xffff_ffff) as usize);
            let right = next[at] as usize;
            if right >= count || self.rank(ids[at], ids[right]) != rank {
                continue;
            }
            let merged = self.merged[rank as usize];
            ids[at] = merged;
            ids[right] = NONE;
            let after = next[right] as usize;
            next[at] = after as u32;
            if after < count {
                prev[after] = at as u32;
                let rank = self.rank(merged, ids[after]);
                if rank != NONE {
                    heap.push(entry(rank, at));
                }
            }
            if prev[at] != NONE {
                let before = prev[at] as usize;
                let rank = self.rank(ids[before], merged);
                if rank != NONE {
                    heap.push(entry(rank, before));
                }
            }
        }
        ids.retain(|&id| id != NONE);
    }
}

/// A pair as one number, without its rank.
#[inline(always)]
fn key(left: u32, right: u32) -> u64 {
    (left as u64) << ID_BITS | right as u64
}
