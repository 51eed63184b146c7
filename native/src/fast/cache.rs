//! A direct-mapped cache from short words to their ids. It never changes a result: a line is used only when the whole
//! word is equal.
use super::merges::mix;

/// Longest word that is kept, in bytes.
const KEY: usize = 24;
/// Most ids that are kept for a word.
const IDS: usize = 8;
/// 2^15 lines of 64 bytes: 2 MB, of which the system hands out only the pages that are touched.
const LINES: usize = 1 << 15;

/// One cache line of the processor.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    key: [u64; KEY / 8],
    ids: [u32; IDS],
    len: u8, // of the word; 0: an unused line
    count: u8,
}

const UNUSED: Line = Line { key: [0; KEY / 8], ids: [0; IDS], len: 0, count: 0 };

/// Where a word that wasn't found belongs.
pub struct Place {
    line: usize,
    key: [u64; KEY / 8],
    len: u8,
}

/// The cache. For one encoder.
pub struct WordCache {
    lines: Box<[Line]>,
}

impl WordCache {
    pub fn new() -> Self {
        WordCache { lines: zeroed_lines() }
    }

    /// Appends the ids of `text[start..end]` to `out`, or says where to put them; Err(None) for a word that is never
    /// kept.
    #[inline(always)]
    pub fn get(&self, text: &[u8], start: usize, end: usize, out: &mut Vec<u32>) -> Result<(), Option<Place>> {
        let len = end - start;
        if len > KEY {
            return Err(None);
        }
        let key = load_key(text, start, len);
        let hash = mix(key[0] ^ mix(key[1].wrapping_add(len as u64)).rotate_left(17) ^ mix(key[2]).rotate_left(41));
        let at = (hash >> 11) as usize % LINES;
        let line = &self.lines[at];
        if line.len as usize != len || line.key != key {
            return Err(Some(Place { line: at, key, len: len as u8 }));
        }
        if line.count == 1 {
            out.push(line.ids[0]); // most words of most languages
        } else {
            out.extend_from_slice(&line.ids[..line.count as usize]);
        }
        Ok(())
    }

    /// Keeps a word's ids, if there are few enough.
    pub fn put(&mut self, place: Place, ids: &[u32]) {
        if ids.len() > IDS {
            return;
        }
        let line = &mut self.lines[place.line];
        *line = Line { key: place.key, len: place.len, count: ids.len() as u8, ..UNUSED };
        line.ids[..ids.len()].copy_from_slice(ids);
    }
}

/// Zero pages straight from the allocator, where a filled vector would touch all 2 MB.
fn zeroed_lines() -> Box<[Line]> {
    // Safety: a line is integers only, for which all-zero bytes are a value: UNUSED.
    unsafe { Box::new_zeroed_slice(LINES).assume_init() }
}

/// The word as three numbers, padded with zeros. Three whole loads where the text has 24 bytes left, which beats copying
/// a slice of varying length.
#[inline(always)]
fn load_key(text: &[u8], start: usize, len: usize) -> [u64; KEY / 8] {
    let mut bytes = [0u8; KEY];
    if let Some(window) = text.get(start..start + KEY) {
        bytes.copy_from_slice(window);
    } else {
        bytes[..len].copy_from_slice(&text[start..start + len]);
    }
    let word = |k: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[8 * k..8 * k + 8]);
        let keep = len.saturating_sub(8 * k).min(8) as u32;
        // Shifting by 64 isn't defined, hence the two steps.
        u64::from_le_bytes(eight) & !(u64::MAX << (4 * keep) << (4 * keep))
    };
    [word(0), word(1), word(2)]
}

impl Default for WordCache {
    fn default() -> Self {
        Self::new()
    }
}
