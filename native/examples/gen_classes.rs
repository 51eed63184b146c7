//! Writes `src/fast/classes.bin` (see `src/fast/classes.rs`) from the classes of the Oniguruma that is linked here,
//! which is the one the `tokenizers` crate links.
//!
//!     native/build.sh cargo run --example gen_classes
//!
//! Run it when the `onig` crate in Cargo.lock changes. `tests/exact.rs` compares every code point in context and fails
//! when the table is stale.
use portico_native::fast::classes::*;
use std::ops::RangeInclusive;

/// The ranges of DeepSeek's second pattern.
const HAN_KANA_RANGES: [RangeInclusive<usize>; 3] = [0x4e00..=0x9fa5, 0x3040..=0x309f, 0x30a0..=0x30ff];

fn main() {
    let every: String = (0..0x110000).filter_map(char::from_u32).collect();
    let mut classes = vec![0u8; 0x110000];
    for (pattern, class) in [
        (r"[\p{Lu}\p{Lt}]", UPPER),
        (r"\p{Ll}", LOWER),
        (r"[\p{Lm}\p{Lo}]", OTHER),
        (r"\p{M}", MARK),
        (r"\p{N}", NUMBER),
        (r"[\p{P}\p{S}]", SIGN),
        (r"\s", SPACE),
    ] {
        let regex = onig::Regex::new(&format!("{pattern}+")).expect("pattern");
        for (start, end) in regex.find_iter(&every) {
            every[start..end].chars().for_each(|c| classes[c as usize] |= class);
        }
    }
    for range in HAN_KANA_RANGES {
        classes[range].iter_mut().for_each(|c| *c |= HAN_KANA);
    }

    let mut blocks: Vec<&[u8]> = vec![];
    let mut table = vec![];
    for page in classes.chunks_exact(256) {
        let block = blocks.iter().position(|b| *b == page).unwrap_or_else(|| {
            blocks.push(page);
            blocks.len() - 1
        });
        table.push(u8::try_from(block).expect("at most 256 different pages"));
    }
    assert_eq!(table.len(), PAGES);
    table.extend(blocks.concat());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/fast/classes.bin");
    std::fs::write(path, &table).expect("write");
    println!("{path}: {} blocks, {} bytes", blocks.len(), table.len());
}
