//! Reads a tokenizer.json into what the encoder needs, or refuses it with a reason.
//!
//! The vocabulary and the merges, nearly all of the file, are read without building a JSON tree: strings are borrowed
//! from the file and everything temporary is freed before the tokenizer is used.
use super::classes::{LETTER, MARK};
use super::merges::{ID_BITS, NONE, RANK_BITS};
use super::split::Pattern;
use super::words::Words;
use rustc_hash::FxHashMap;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// A tokenizer.json, as far as it concerns encoding.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    truncation: Value,
    #[serde(default)]
    padding: Value,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    dropout: Value,
    #[serde(default)]
    unk_token: Value,
    #[serde(default)]
    continuing_subword_prefix: Value,
    #[serde(default)]
    end_of_word_suffix: Value,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(borrow)]
    vocab: Entries<'a>,
    #[serde(borrow)]
    merges: Vec<Merge<'a>>,
}

/// An object of ids, in the file's order.
struct Entries<'a>(Vec<(Text<'a>, u32)>);

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// "left right" or ["left", "right"].
struct Merge<'a>(Text<'a>, Option<Text<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of token ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Merge(Text(Cow::Borrowed(text)), None))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Merge(Text(Cow::Owned(text.to_string())), None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let missing = || serde::de::Error::custom("a merge has two parts");
                let left = seq.next_element()?.ok_or_else(missing)?;
                let right = seq.next_element()?.ok_or_else(missing)?;
                Ok(Merge(left, Some(right)))
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

/// Added tokens that are looked for in the same pass.
#[derive(Default)]
pub struct Added {
    pub contents: Vec<String>,
    pub ids: Vec<u32>,
}

/// What the encoder is built from.
pub struct Config {
    pub nfc: bool,
    pub pattern: Pattern,
    pub byte_id: [u32; 256],
    pub merges: Vec<(u32, u32, u32)>,
    /// With `ignore_merges`.
    pub words: Option<Words>,
    /// Added tokens matched in raw text, and those matched in normalized text.
    pub added: [Added; 2],
    /// Ids the post-processor puts before and after a text.
    pub before: Vec<u32>,
    pub after: Vec<u32>,
}

/// The result of checking one part.
type Checked<T> = Result<T, String>;

fn refuse<T>(reason: impl fmt::Display) -> Checked<T> {
    let mut reason = reason.to_string();
    if let Some((end, _)) = reason.char_indices().nth(300) {
        reason.truncate(end);
        reason.push('…');
    }
    Err(reason)
}

impl Config {
    /// Reads a tokenizer.json.
    pub fn from_json(json: &[u8]) -> Checked<Config> {
        let file: File = serde_json::from_slice(json).or_else(|e| refuse(format!("unexpected form: {e}")))?;
        if !file.truncation.is_null() || !file.padding.is_null() {
            return refuse("truncation or padding");
        }
        let nfc = normalizer(&file.normalizer)?;
        let pattern = pattern(&file.pre_tokenizer)?;
        let (mut before, mut after) = (vec![], vec![]);
        template(&file.post_processor, &mut before, &mut after)?;
        let byte_id = alphabet(&file.model)?;
        let ids = index(&file.model.vocab)?;
        Ok(Config {
            nfc,
            pattern,
            byte_id,
            merges: merges(&file.model.merges, &ids)?,
            words: if file.model.ignore_merges { Some(words(&file.model.vocab)) } else { None },
            added: added(&file.added_tokens, &ids, nfc)?,
            before,
            after,
        })
    }
}

/// Whether text is brought into form NFC first.
fn normalizer(n: &Value) -> Checked<bool> {
    match n["type"].as_str() {
        None if n.is_null() => Ok(false),
        Some("NFC") => Ok(true),
        Some("Sequence") => match n["normalizers"].as_array().map(Vec::as_slice) {
            Some([]) => Ok(false),
            Some([only]) => normalizer(only),
            _ => refuse(format!("normalizer {n}")),
        },
        _ => refuse(format!("normalizer {n}")),
    }
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
];

/// The patterns by their regex. All of these match every character.
const PATTERNS: [(&str, Pattern); 6] = [
    (GPT2, Pattern::Gpt2),
    (LLAMA3, Pattern::Cl100k { letters: LETTER, digits: 3 }),
    (QWEN2, Pattern::Cl100k { letters: LETTER, digits: 1 }),
    (QWEN35, Pattern::Cl100k { letters: LETTER | MARK, digits: 1 }),
    (O200K, Pattern::O200k { digits: 3, contractions: true }),
    (TEKKEN, Pattern::O200k { digits: 1, contractions: false }),
];

/// The pattern of a pre-tokenizer: splits, then ByteLevel.
fn pattern(p: &Value) -> Checked<Pattern> {
    let no = || refuse(format!("pre-tokenizer {p}"));
    let list = match p["type"].as_str() {
        Some("Sequence") => p["pretokenizers"].as_array().map_or(&[][..], Vec::as_slice),
        _ => std::slice::from_ref(p),
    };
    let Some((last, splits)) = list.split_last() else { return no() };
    if last["type"] != "ByteLevel" || last["add_prefix_space"] != false {
        return no();
    }
    if last["use_regex"].as_bool().unwrap_or(true) {
        return match splits {
            [] => Ok(Pattern::Gpt2),
            [d] if d["type"] == "Digits" && d["individual_digits"] == true => Ok(Pattern::DigitsThenGpt2),
            _ => no(),
        };
    }
    let isolated = |s: &Value| s["behavior"] == "Isolated" && s["invert"] == false;
    // Removing what the regex doesn't match is the same for a regex that matches everything.
    let keeps_matches = |s: &Value| s["behavior"] == "Removed" && s["invert"] == true;
    match splits {
        [s] if s["type"] == "Split" && (isolated(s) || keeps_matches(s)) => {
            let regex = s["pattern"]["Regex"].as_str().unwrap_or("");
            PATTERNS.iter().find(|(known, _)| *known == regex).map_or_else(no, |(_, pattern)| Ok(*pattern))
        }
        [..] if splits.len() == DEEPSEEK.len()
            && splits.iter().zip(DEEPSEEK).all(|(s, regex)| {
                s["type"] == "Split" && isolated(s) && s["pattern"]["Regex"] == regex
            }) =>
        {
            Ok(Pattern::DeepSeek)
        }
        _ => no(),
    }
}

/// Adds the ids that a post-processor puts around a single text.
fn template(p: &Value, before: &mut Vec<u32>, after: &mut Vec<u32>) -> Checked<()> {
    let no = || refuse(format!("post-processor {p}"));
    match p["type"].as_str() {
        None if p.is_null() => Ok(()),
        Some("ByteLevel") => Ok(()), // only moves offsets
        Some("Sequence") => match p["processors"].as_array() {
            Some(list) => list.iter().try_for_each(|p| template(p, before, after)),
            None => no(),
        },
        // A second template would wrap the first one's tokens.
        Some("TemplateProcessing") if before.is_empty() && after.is_empty() => {
            let mut seen = false;
            for piece in p["single"].as_array().map_or(&[][..], Vec::as_slice) {
                if piece["Sequence"]["id"] == "A" && !seen {
                    seen = true;
                    continue;
                }
                let Some(name) = piece["SpecialToken"]["id"].as_str() else { return no() };
                let Some(ids) = p["special_tokens"][name]["ids"].as_array() else { return no() };
                for id in ids {
                    let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else { return no() };
                    if seen { &mut *after } else { &mut *before }.push(id);
                }
            }
            if seen {
                Ok(())
            } else {
                no()
            }
        }
        _ => no(),
    }
}

/// The byte that a character of the byte-level alphabet stands for: printable Latin-1 is itself, the other bytes follow
/// from U+0100 on, in order.
fn byte_of(c: char) -> Option<u8> {
    const OTHERS: [(u8, u8); 3] = [(0x00, 0x20), (0x7f, 0xa0), (0xad, 0xad)];
    match c {
        '!'..='~' | '\u{a1}'..='\u{ac}' | '\u{ae}'..='\u{ff}' => Some(c as u8),
        _ => {
            let mut rest = (c as u32).checked_sub(0x100)?;
            for (first, last) in OTHERS {
                let count = (last - first) as u32 + 1;
                if rest < count {
                    return Some(first + rest as u8);
                }
                rest -= count;
            }
            None
        }
    }
}

/// The token of each byte.
fn alphabet(model: &Model) -> Checked<[u32; 256]> {
    if model.r#type.as_deref().is_some_and(|t| t != "BPE") {
        return refuse(format!("model {}", model.r#type.as_deref().unwrap_or_default()));
    }
    let off = |v: &Value| v.is_null() || *v == "" || v.as_f64() == Some(0.0);
    for (name, value) in [
        ("dropout", &model.dropout),
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if !off(value) {
            return refuse(format!("{name} {value}"));
        }
    }
    let mut byte_id = [NONE; 256];
    for (text, id) in &model.vocab.0 {
        let mut chars = text.0.chars();
        if let (Some(c), None) = (chars.next(), chars.next()) {
            if let Some(byte) = byte_of(c) {
                byte_id[byte as usize] = *id;
            }
        }
    }
    let complete = !byte_id.contains(&NONE);
    if !complete && (!model.unk_token.is_null() || model.byte_fallback) {
        return refuse("an unknown token or byte fallback, with bytes that have no token");
    }
    Ok(byte_id)
}

/// The vocabulary as a map.
fn index<'a>(vocab: &'a Entries) -> Checked<FxHashMap<&'a str, u32>> {
    let mut ids = FxHashMap::with_capacity_and_hasher(vocab.0.len(), Default::default());
    for (text, id) in &vocab.0 {
        if *id >= (1 << ID_BITS) - 1 {
            return refuse(format!("token id {id}: too large"));
        }
        if ids.insert(&*text.0, *id).is_some() {
            return refuse(format!("token {:?} twice", text.0));
        }
    }
    Ok(ids)
}

/// The merges as ids, by rank.
fn merges(list: &[Merge], ids: &FxHashMap<&str, u32>) -> Checked<Vec<(u32, u32, u32)>> {
    if list.len() >= (1 << RANK_BITS) - 1 {
        return refuse(format!("{} merges: too many", list.len()));
    }
    let mut found = Vec::with_capacity(list.len());
    let mut joined = String::new();
    for Merge(left, right) in list {
        let (left, right) = match right {
            Some(right) => (&*left.0, &*right.0),
            None => match left.0.split_once(' ') {
                Some((left, right)) if !right.contains(' ') => (left, right),
                _ => return refuse(format!("merge {:?}", left.0)),
            },
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        match (ids.get(left), ids.get(right), ids.get(joined.as_str())) {
            (Some(&left), Some(&right), Some(&merged)) => found.push((left, right, merged)),
            _ => return refuse(format!("merge of {left:?} and {right:?}: not in the vocabulary")),
        }
    }
    Ok(found)
}

/// The vocabulary by the bytes its tokens stand for. A token with other characters can't be a word.
fn words(vocab: &Entries) -> Words {
    let mut words = Words::with_capacity(vocab.0.len());
    let mut bytes = Vec::new();
    for (text, id) in &vocab.0 {
        bytes.clear();
        bytes.extend(text.0.chars().map_while(byte_of));
        if bytes.len() == text.0.chars().count() {
            words.insert(&bytes, *id);
        }
    }
    words
}

/// The added tokens with the ids that the reference gives them, which are not always the file's.
fn added(tokens: &[AddedToken], ids: &FxHashMap<&str, u32>, nfc: bool) -> Checked<[Added; 2]> {
    let mut sets: [Added; 2] = Default::default();
    let mut known: FxHashMap<&str, u32> = FxHashMap::default();
    let size = ids.len() as u32;
    for token in tokens {
        let content = token.content.as_str();
        if content.is_empty() || token.lstrip || token.rstrip || token.single_word {
            return refuse(format!("added token {content:?}: empty, lstrip, rstrip or single_word"));
        }
        if token.normalized && nfc {
            return refuse(format!("added token {content:?}: looked for in normalized text"));
        }
        let next = known.values().max().map_or(size, |&most| if most >= size { most + 1 } else { size });
        let id = ids.get(content).copied().unwrap_or(next);
        if id != token.id {
            return refuse(format!("added token {content:?}: id {}, would be {id}", token.id));
        }
        if known.insert(content, id).is_some() {
            return refuse(format!("added token {content:?} twice"));
        }
        let set = &mut sets[token.normalized as usize];
        set.contents.push(content.to_string());
        set.ids.push(id);
    }
    Ok(sets)
}
