//! The whole-word look-up of `ignore_merges`: a word that is a token is that token, whatever the merges say.
use super::merges::mix;

/// A read-only map from words to ids, in three flat arrays.
pub struct Words {
    bytes: Vec<u8>,
    /// Word `i` ends at `ends[i].0` in `bytes` and has the id `ends[i].1`.
    ends: Vec<(u32, u32)>,
    /// Open addressing: one more than a word's number, or 0.
    slots: Vec<u32>,
    longest: usize,
}

impl Words {
    /// An empty map with room for `count` words.
    pub fn with_capacity(count: usize) -> Self {
        let size = (count * 3 / 2).next_power_of_two().max(16);
        Words { bytes: Vec::with_capacity(count * 7), ends: Vec::with_capacity(count), slots: vec![0; size], longest: 0 }
    }

    /// Adds a word. At most as many as there is room for, each once.
    pub fn insert(&mut self, word: &[u8], id: u32) {
        self.bytes.extend_from_slice(word);
        self.ends.push((self.bytes.len() as u32, id));
        self.longest = self.longest.max(word.len());
        let mask = self.slots.len() - 1;
        let mut at = hash(word) as usize & mask;
        while self.slots[at] != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = self.ends.len() as u32;
    }

    /// The id of a word.
    pub fn get(&self, word: &[u8]) -> Option<u32> {
        if word.len() > self.longest {
            return None;
        }
        let mask = self.slots.len() - 1;
        let mut at = hash(word) as usize & mask;
        loop {
            let number = (self.slots[at] as usize).checked_sub(1)?;
            let start = number.checked_sub(1).map_or(0, |before| self.ends[before].0 as usize);
            let (end, id) = self.ends[number];
            if &self.bytes[start..end as usize] == word {
                return Some(id);
            }
            at = (at + 1) & mask;
        }
    }
}

fn hash(word: &[u8]) -> u64 {
    let chunks = word.chunks_exact(8);
    let tail = chunks.remainder().iter().fold(word.len() as u64, |h, &b| h << 8 | b as u64);
    chunks.fold(mix(tail), |h, c| mix(h.rotate_left(23) ^ c.iter().fold(0, |x, &b| x << 8 | b as u64)))
}
