//! The reference tokenizer, one word at a time.
//!
//! The `tokenizers` crate spends most of an encode on what the ids don't need: alignments of a normalized string for
//! every word, an owned text for every token, an Encoding of seven arrays. What a byte-level model says of a word depends
//! on nothing but the word, so here the crate does everything that decides an id, and a word it has been asked for before
//! is looked up:
//!
//! | step | done by |
//! | --- | --- |
//! | added tokens, normalizer | the crate; NFC is left out for a text that is in this form already |
//! | cutting into words | the crate's regular expressions, in the crate's order |
//! | byte-level letters, merges | the crate, for words not remembered |
//! | what is put around a text | the crate's post-processor |
//!
//! [`covers`] says which tokenizers have that shape; all others are encoded by the crate in one call.
use crate::fast::cache::WordCache;
use crate::tok::{borrow, guard, unified, Array};
use crate::UnifiedTokenizer;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::Mutex;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::Split;
use tokenizers::{
    Encoding, Model, ModelWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    SplitDelimiterBehavior, Token, Tokenizer,
};
use unicode_normalization_alignments::{is_nfc_quick, IsNormalized};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The steps of a pre-tokenizer that cut text into words, and the one that spells them in byte-level letters.
struct Shape<'a> {
    splits: Vec<&'a Split>,
    letters: &'a ByteLevel,
}

/// The shape of a tokenizer whose words can be encoded one by one, or None.
fn covers(tokenizer: &Tokenizer) -> Option<Shape<'_>> {
    // Truncation and padding need the whole; dropout gives a word other ids each time.
    if tokenizer.get_truncation().is_some() || tokenizer.get_padding().is_some() {
        return None;
    }
    match tokenizer.get_model() {
        ModelWrapper::BPE(bpe) if bpe.dropout.is_none() => {}
        _ => return None,
    }
    let PreTokenizerWrapper::Sequence(steps) = tokenizer.get_pre_tokenizer()? else { return None };
    let (last, first) = steps.as_ref().split_last()?;
    let letters = match last {
        // A prefix space or another cut would depend on where the word stands.
        PreTokenizerWrapper::ByteLevel(b) if !b.add_prefix_space && !b.use_regex => b,
        _ => return None,
    };
    let isolated = |step| match step {
        &PreTokenizerWrapper::Split(ref s) if !s.invert && s.behavior == SplitDelimiterBehavior::Isolated => Some(s),
        _ => None,
    };
    Some(Shape { splits: first.iter().map(isolated).collect::<Option<_>>()?, letters })
}

/// What one encode needs beside the tokenizer, used again by later ones.
#[derive(Default)]
struct Scratch {
    cache: WordCache,
    ranges: Vec<(usize, usize)>,
    finer: Vec<(usize, usize)>,
    ids: Vec<u32>,
}

/// The remembered words of one tokenizer. As many caches are made as there are encodes at a time.
#[derive(Default)]
pub struct Words {
    idle: Mutex<Vec<Box<Scratch>>>,
}

impl Words {
    /// The ids of `text`. None: the tokenizer isn't covered.
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str, add_special: bool) -> Option<Result<Vec<u32>, Failure>> {
        let shape = covers(tokenizer)?;
        let idle = self.idle.lock().map(|mut list| list.pop());
        let mut scratch = idle.ok().flatten().unwrap_or_default();
        let ids = scratch.encode(tokenizer, &shape, text, add_special);
        // After a failure the memory isn't used again: nothing is known of what is in it.
        if let (Ok(_), Ok(mut list)) = (&ids, self.idle.lock()) {
            list.push(scratch);
        }
        Some(ids)
    }
}

impl Scratch {
    fn encode(
        &mut self,
        tokenizer: &Tokenizer,
        shape: &Shape,
        text: &str,
        add_special: bool,
    ) -> Result<Vec<u32>, Failure> {
        let pieces = tokenizer.get_added_vocabulary().extract_and_normalize(normalizer(tokenizer, text), text);
        self.ids.clear();
        for (piece, _, tokens) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            match tokens {
                Some(tokens) => self.ids.extend(tokens.iter().map(|t| t.id)),
                None => {
                    self.cut(shape, piece);
                    self.encode_words(tokenizer.get_model(), shape.letters, piece)?;
                }
            }
        }
        if !add_special || tokenizer.get_post_processor().is_none() {
            return Ok(self.ids.clone()); // without special tokens a post-processor moves only offsets
        }
        // Only ids matter behind the post-processor: the tokens need no text.
        let tokens = self.ids.iter().map(|&id| Token { id, value: String::new(), offsets: (0, 0) }).collect();
        let whole = tokenizer.post_process(Encoding::from_tokens(tokens, 0), None, true)?;
        Ok(whole.get_ids().to_vec())
    }

    /// Sets `ranges` to the words of `piece`, in order.
    fn cut(&mut self, shape: &Shape, piece: &str) {
        self.ranges.clear();
        self.ranges.push((0, piece.len()));
        for split in &shape.splits {
            self.finer.clear();
            for &(start, end) in &self.ranges {
                let mut at = start;
                for (from, to) in split.regex.find_iter(&piece[start..end]) {
                    self.finer.extend([(at, start + from), (start + from, start + to)]);
                    at = start + to;
                }
                self.finer.push((at, end));
            }
            self.finer.retain(|&(start, end)| start < end);
            std::mem::swap(&mut self.ranges, &mut self.finer);
        }
    }

    /// Appends the ids of the words of `piece`.
    fn encode_words(&mut self, model: &ModelWrapper, letters: &ByteLevel, piece: &str) -> Result<(), Failure> {
        for &(start, end) in &self.ranges {
            let Err(place) = self.cache.get(piece.as_bytes(), start, end, &mut self.ids) else { continue };
            let before = self.ids.len();
            let mut word = PreTokenizedString::from(&piece[start..end]);
            letters.pre_tokenize(&mut word)?;
            for (spelled, _, _) in word.get_splits(OffsetReferential::Normalized, OffsetType::None) {
                self.ids.extend(model.tokenize(spelled)?.iter().map(|t| t.id));
            }
            if let Some(place) = place {
                self.cache.put(place, &self.ids[before..]);
            }
        }
        Ok(())
    }
}

/// The normalizer that `text` needs. A text in normal form C has only parts in this form, which NFC doesn't change.
fn normalizer<'a>(tokenizer: &'a Tokenizer, text: &str) -> Option<&'a NormalizerWrapper> {
    match tokenizer.get_normalizer() {
        Some(NormalizerWrapper::NFC(_)) if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes => None,
        other => other,
    }
}

/// Makes the memory of a tokenizer's words. Null: the tokenizer isn't covered, and is encoded as a whole.
#[no_mangle]
pub unsafe extern "C" fn portico_words_new(handle: *mut libc::c_void) -> *mut Words {
    let covered = || matches!(unified(handle), Ok(UnifiedTokenizer::HuggingFace(t)) if covers(t).is_some());
    match catch_unwind(AssertUnwindSafe(covered)) {
        Ok(true) => Box::into_raw(Box::default()),
        _ => ptr::null_mut(),
    }
}

/// Frees the words of a tokenizer. Null is nothing.
#[no_mangle]
pub unsafe extern "C" fn portico_words_free(words: *mut Words) {
    if !words.is_null() {
        drop(Box::from_raw(words));
    }
}

/// Writes the ids of `text` to `out`, as `portico_tok_encode` does. `words` was made for this handle. Invalid UTF-8 is
/// replaced by U+FFFD. False: `error` says why.
#[no_mangle]
pub unsafe extern "C" fn portico_words_encode(
    words: *const Words,
    handle: *mut libc::c_void,
    text: *const u8,
    len: usize,
    add_special: bool,
    out: *mut Array<u32>,
    error: *mut Array<u8>,
) -> bool {
    let ids = guard(error, || {
        let text = String::from_utf8_lossy(borrow(text, len));
        let words = words.as_ref().ok_or_else(|| "no words".to_string())?;
        match unified(handle)? {
            UnifiedTokenizer::HuggingFace(t) => words
                .encode(t, &text, add_special)
                .ok_or_else(|| "the tokenizer isn't encoded by words".to_string())?
                .map_err(|e| e.to_string()),
            _ => Err("the tokenizer isn't encoded by words".to_string()),
        }
    });
    match ids {
        Some(ids) => out.write(Array::give(ids)),
        None => return false,
    }
    true
}
