//! What the tests share: tokenizers and texts.
#![allow(dead_code)] // each test binary uses a part
use serde_json::{json, Value};

/// The tokenizer that is always there.
pub const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/models/smollm2-135m-instruct/tokenizer.json");

/// The tokenizer.json files to test: the small one and those of PORTICO_TOKENIZERS, separated by colons.
pub fn files() -> Vec<String> {
    let more = std::env::var("PORTICO_TOKENIZERS").unwrap_or_default();
    let more = more.split(':').filter(|path| !path.is_empty()).map(str::to_string);
    std::iter::once(SMALL.to_string()).chain(more).collect()
}

/// The small tokenizer as a JSON tree.
pub fn small() -> Value {
    serde_json::from_str(&std::fs::read_to_string(SMALL).expect("read")).expect("parse")
}

/// A pre-tokenizer of regex splits.
pub fn splits(behavior: &str, invert: bool, patterns: &[&str]) -> Value {
    let split = |p: &&str| json!({"type": "Split", "pattern": {"Regex": p}, "behavior": behavior, "invert": invert});
    let mut list: Vec<Value> = patterns.iter().map(split).collect();
    list.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}));
    json!({"type": "Sequence", "pretokenizers": list})
}

/// A xorshift generator: the same texts in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    pub fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

/// Pieces at which the patterns branch.
pub const BITS: &[&str] = &[
    "'s", "'LL", "'\u{17f}", "'Ve", "'", "\r\n", "\n\n ", "   ", " ", "\t", "1234", "\u{663}\u{664}", "//", "/\n", "A",
    "a", "Ab", "HTTPServer", "é", "e\u{301}", "\u{1100}\u{1161}", "你好", "かな", "\u{3099}", "\u{3000}", "\u{a0}",
    "\u{2028}", "😀", "\u{200d}", "\u{ac00}", "ß", "ǅ", "ʰ", "ª", "²", "½", "Ⅷ", "<|", "|>", "_", "-", "\u{85}", "\0",
    "ह\u{93f}न\u{94d}दी", "\u{1e9e}", "the quick brown fox ", "return x;\n\t\t}", "∀x∈ℝ",
];

/// A text of random pieces.
pub fn mixture(random: &mut Random, added: &[String]) -> String {
    let mut text = String::new();
    for _ in 0..1 + random.below(40) {
        match random.below(10) {
            0 if !added.is_empty() => text.push_str(&added[random.below(added.len())]),
            0 | 1 => text.extend(char::from_u32(random.below(0x32000) as u32)),
            2 => text.extend(char::from_u32(random.below(0x3100) as u32)),
            _ => text.push_str(random.pick(BITS)),
        }
    }
    text
}
