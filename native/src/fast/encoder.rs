//! From text to ids.
use super::cache::WordCache;
use super::config::{Added, Config};
use super::merges::{Merges, Scratch};
use super::split::{Pattern, Scanner};
use super::words::Words;
use aho_corasick::{AhoCorasick, MatchKind};
use std::sync::Arc;
use unicode_normalization_alignments::{is_nfc_quick, IsNormalized, UnicodeNormalization};

/// Ids an encoder keeps room for between calls.
const KEPT_IDS: usize = 1 << 16;
/// Bytes of normalized text an encoder keeps room for.
const KEPT_BYTES: usize = 1 << 18;
/// Longest word, in symbols, whose scratch memory is kept.
const KEPT_SYMBOLS: usize = 1 << 14;

/// Finds added tokens: the leftmost, of those the longest.
struct Finder {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

/// What a tokenizer.json says about encoding. Immutable; shared by its encoders.
pub struct Tokenizer {
    nfc: bool,
    pattern: Pattern,
    merges: Merges,
    words: Option<Words>,
    raw: Option<Finder>,
    normalized: Option<Finder>,
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Tokenizer {
    /// Reads a tokenizer.json. An error says what isn't covered.
    pub fn from_json(json: &[u8]) -> Result<Tokenizer, String> {
        let config = Config::from_json(json)?;
        let [raw, normalized] = config.added;
        Ok(Tokenizer {
            nfc: config.nfc,
            pattern: config.pattern,
            merges: Merges::new(config.byte_id, &config.merges),
            words: config.words,
            raw: finder(raw)?,
            normalized: finder(normalized)?,
            before: config.before,
            after: config.after,
        })
    }
}

fn finder(added: Added) -> Result<Option<Finder>, String> {
    if added.contents.is_empty() {
        return Ok(None);
    }
    let automaton = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(&added.contents)
        .map_err(|e| format!("added tokens: {e}"))?;
    Ok(Some(Finder { automaton, ids: added.ids }))
}

/// Encodes one text at a time and owns the memory that takes.
pub struct Encoder {
    tokenizer: Arc<Tokenizer>,
    work: Work,
    ids: Vec<u32>,
}

/// What encoding a word uses.
struct Work {
    cache: WordCache,
    scratch: Scratch,
    normal: String,
}

impl Encoder {
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let work = Work { cache: WordCache::new(), scratch: Scratch::default(), normal: String::new() };
        Encoder { tokenizer, work, ids: Vec::new() }
    }

    /// The ids of `text`, good until the next call; `add_special` adds what the post-processor puts around it.
    pub fn encode(&mut self, text: &str, add_special: bool) -> &[u32] {
        self.shrink();
        let Encoder { tokenizer, work, ids } = self;
        ids.clear();
        ids.reserve(text.len() / 4);
        if add_special {
            ids.extend(&tokenizer.before);
        }
        tokenizer.raw_text(text, work, ids);
        if add_special {
            ids.extend(&tokenizer.after);
        }
        ids
    }

    /// One huge text shouldn't leave its memory behind for good.
    fn shrink(&mut self) {
        if self.ids.capacity() > KEPT_IDS {
            self.ids = Vec::new();
        }
        if self.work.normal.capacity() > KEPT_BYTES {
            self.work.normal = String::new();
        }
        if self.work.scratch.symbols() > KEPT_SYMBOLS {
            self.work.scratch = Scratch::default();
        }
    }
}

impl Tokenizer {
    /// Cuts text at the added tokens that are looked for before normalizing.
    fn raw_text(&self, text: &str, work: &mut Work, out: &mut Vec<u32>) {
        let rest = pieces(self.raw.as_ref(), text, out, |piece, out| self.piece(piece, work, out));
        if !rest.is_empty() {
            self.piece(rest, work, out);
        }
    }

    /// Normalizes a piece, then looks for the other added tokens.
    fn piece(&self, text: &str, work: &mut Work, out: &mut Vec<u32>) {
        if self.nfc && !is_normal(text) {
            let mut normal = std::mem::take(&mut work.normal);
            normal.clear();
            normal.extend(text.nfc().map(|(c, _)| c));
            self.normal_text(&normal, work, out);
            work.normal = normal;
        } else {
            self.normal_text(text, work, out);
        }
    }

    fn normal_text(&self, text: &str, work: &mut Work, out: &mut Vec<u32>) {
        let rest = pieces(self.normalized.as_ref(), text, out, |piece, out| self.words(piece, work, out));
        if !rest.is_empty() {
            self.words(rest, work, out);
        }
    }

    fn words(&self, text: &str, work: &mut Work, out: &mut Vec<u32>) {
        let Work { cache, scratch, .. } = work;
        let bytes = text.as_bytes();
        Scanner::new(text).split(self.pattern, |start, end| {
            if let Err(place) = cache.get(bytes, start, end, out) {
                let first = out.len();
                self.word(&bytes[start..end], scratch, out);
                if let Some(place) = place {
                    cache.put(place, &out[first..]);
                }
            }
        });
    }

    fn word(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        match self.words.as_ref().and_then(|words| words.get(word)) {
            Some(id) => out.push(id),
            None => self.merges.encode(word, scratch, out),
        }
    }
}

/// Gives the text between added tokens to `between` and their ids to `out`. Returns the text after the last one.
fn pieces<'t>(
    finder: Option<&Finder>,
    text: &'t str,
    out: &mut Vec<u32>,
    mut between: impl FnMut(&str, &mut Vec<u32>),
) -> &'t str {
    let Some(finder) = finder else { return text };
    let mut at = 0;
    for found in finder.automaton.find_iter(text) {
        if found.start() > at {
            between(&text[at..found.start()], out);
        }
        out.push(finder.ids[found.pattern().as_usize()]);
        at = found.end();
    }
    &text[at..]
}

/// Whether text is surely in form NFC. No character below U+0300 changes, alone or with another.
fn is_normal(text: &str) -> bool {
    text.bytes().all(|b| b < 0xcc) || is_nfc_quick(text.chars()) == IsNormalized::Yes
}
