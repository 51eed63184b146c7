//! Scanners for the split patterns in common use, each with the branch order and the backtracking of its regex.
//!
//! A scanner is asked for the end of the word that starts at `at`; `end` acts as the end of the text. Letters, marks and
//! so on are the classes of [`super::classes`].
use super::classes::*;

/// What cuts text into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// GPT-2's pattern.
    Gpt2,
    /// Each digit by itself, then GPT-2's pattern between them.
    DigitsThenGpt2,
    /// The pattern of cl100k, Llama 3 (three digits) and Qwen 2 and 3 (one digit). `letters` are the classes that form
    /// words: letters, or letters and marks.
    Cl100k { letters: u8, digits: usize },
    /// The pattern of o200k (three digits, contractions) and Tekken (one digit, none).
    O200k { digits: usize, contractions: bool },
    /// The three patterns of DeepSeek V3, one after the other.
    DeepSeek,
}

/// One character: its classes and its length in bytes, which is 0 at the end of the text.
#[derive(Clone, Copy)]
struct Char {
    class: u8,
    len: usize,
}

impl Char {
    #[inline(always)]
    fn is(self, classes: u8) -> bool {
        self.class & classes != 0
    }
}

/// Cuts one text.
pub struct Scanner<'t> {
    text: &'t [u8],
}

#[inline(always)]
fn is_newline(byte: u8) -> bool {
    byte == b'\r' || byte == b'\n'
}

impl<'t> Scanner<'t> {
    pub fn new(text: &'t str) -> Self {
        Scanner { text: text.as_bytes() }
    }

    /// Calls `word` with the start and end of each word.
    #[inline]
    pub fn split(&self, pattern: Pattern, word: impl FnMut(usize, usize)) {
        let end = self.text.len();
        match pattern {
            Pattern::Gpt2 => self.each(0, end, |at, end| self.gpt2(at, end), word),
            Pattern::Cl100k { letters, digits } => {
                self.each(0, end, |at, end| self.cl100k(at, end, letters, digits), word)
            }
            Pattern::O200k { digits, contractions } => {
                self.each(0, end, |at, end| self.o200k(at, end, digits, contractions), word)
            }
            Pattern::DigitsThenGpt2 => self.digits_then_gpt2(word),
            Pattern::DeepSeek => self.deepseek(word),
        }
    }

    #[inline(always)]
    fn each(
        &self,
        mut at: usize,
        end: usize,
        next: impl Fn(usize, usize) -> usize,
        mut word: impl FnMut(usize, usize),
    ) {
        while at < end {
            let stop = next(at, end);
            word(at, stop);
            at = stop;
        }
    }

    /// The character at `at`. The text is UTF-8 and `at` a character's start.
    #[inline(always)]
    fn char(&self, at: usize, end: usize) -> Char {
        if at >= end {
            return Char { class: 0, len: 0 };
        }
        let first = self.text[at];
        if first < 0x80 {
            return Char { class: of_ascii(first), len: 1 };
        }
        let (code, len) = self.wide(first, at);
        Char { class: of(code), len }
    }

    /// Code point and length of the character at `at`, which isn't ASCII.
    #[inline(always)]
    fn wide(&self, first: u8, at: usize) -> (u32, usize) {
        let tail = |k: usize| (self.text[at + k] & 0x3f) as u32;
        let first = first as u32;
        match first {
            0..=0xdf => ((first & 0x1f) << 6 | tail(1), 2),
            0xe0..=0xef => ((first & 0x0f) << 12 | tail(1) << 6 | tail(2), 3),
            _ => ((first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4),
        }
    }

    /// `[classes]*`
    #[inline(always)]
    fn run(&self, mut at: usize, end: usize, classes: u8) -> usize {
        loop {
            let c = self.char(at, end);
            if !c.is(classes) {
                return at;
            }
            at += c.len;
        }
    }

    /// `[^classes]*`
    #[inline(always)]
    fn run_except(&self, mut at: usize, end: usize, classes: u8) -> usize {
        loop {
            let c = self.char(at, end);
            if c.len == 0 || c.is(classes) {
                return at;
            }
            at += c.len;
        }
    }

    #[inline(always)]
    fn run_bytes(&self, mut at: usize, end: usize, accept: impl Fn(u8) -> bool) -> usize {
        while at < end && accept(self.text[at]) {
            at += 1;
        }
        at
    }

    /// `[number]{0,most}`
    fn numbers(&self, mut at: usize, end: usize, most: usize) -> usize {
        for _ in 0..most {
            let c = self.char(at, end);
            if !c.is(NUMBER) {
                break;
            }
            at += c.len;
        }
        at
    }

    /// `'s|'t|'re|'ve|'m|'ll|'d`: its end, or `at`. With `fold` letter case doesn't matter, which adds U+017F, the
    /// long s.
    #[inline]
    fn contraction(&self, at: usize, end: usize, fold: bool) -> usize {
        if self.text[at..end].first() != Some(&b'\'') {
            return at;
        }
        let byte = |k: usize| match self.text[at..end].get(k) {
            Some(b) if fold => b.to_ascii_lowercase(),
            Some(b) => *b,
            None => 0,
        };
        match (byte(1), byte(2)) {
            (b's' | b't' | b'm' | b'd', _) => at + 2,
            (b'r', b'e') | (b'v', b'e') | (b'l', b'l') => at + 3,
            (0xc5, 0xbf) if fold => at + 3,
            _ => at,
        }
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+` at white space; without `lines` the first branch is left out.
    fn space(&self, at: usize, end: usize, lines: bool) -> usize {
        let (mut stop, mut last, mut line) = (at, at, at);
        loop {
            let c = self.char(stop, end);
            if !c.is(SPACE) {
                break;
            }
            if lines && is_newline(self.text[stop]) {
                line = stop + 1;
            }
            last = stop;
            stop += c.len;
        }
        if line > at {
            line // up to the last line end of the run
        } else if stop == end || last == at {
            stop // all of it: nothing follows, or there is only one
        } else {
            last // the last one belongs to what follows
        }
    }

    /// `'s|…| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    #[inline(always)]
    fn gpt2(&self, at: usize, end: usize) -> usize {
        let stop = self.contraction(at, end, false);
        if stop > at {
            return stop;
        }
        let start = at + (self.text[at] == b' ') as usize;
        let c = self.char(start, end);
        let rest = start + c.len;
        if c.len == 0 || c.is(SPACE) {
            self.space(at, end, false)
        } else if c.is(LETTER) {
            self.run(rest, end, LETTER)
        } else if c.is(NUMBER) {
            self.run(rest, end, NUMBER)
        } else {
            self.run_except(rest, end, LETTER | NUMBER | SPACE)
        }
    }

    /// `(?i:'s|…)|[^\r\n\p{L}\p{N}]?letters+|\p{N}{1,digits}| ?[^\s letters \p{N}]+[\r\n]*|white space`
    #[inline(always)]
    fn cl100k(&self, at: usize, end: usize, letters: u8, digits: usize) -> usize {
        let stop = self.contraction(at, end, true);
        if stop > at {
            return stop;
        }
        let c = self.char(at, end);
        if c.is(letters) {
            return self.run(at + c.len, end, letters);
        }
        if c.is(NUMBER) {
            return self.numbers(at, end, digits);
        }
        let next = self.char(at + c.len, end);
        if next.is(letters) && !is_newline(self.text[at]) {
            return self.run(at + c.len + next.len, end, letters);
        }
        self.signs_or_space(at, end, letters | NUMBER | SPACE, is_newline)
    }

    /// ` ?[^words]+[trail]*|white space`, at a character that isn't a letter or number.
    #[inline(always)]
    fn signs_or_space(&self, at: usize, end: usize, words: u8, trail: impl Fn(u8) -> bool) -> usize {
        let first = self.char(at, end);
        let mut start = at;
        if first.is(SPACE) {
            let next = self.char(at + first.len, end);
            if self.text[at] != b' ' || next.len == 0 || next.is(words) {
                return self.space(at, end, true);
            }
            start = at + 1;
        }
        self.run_bytes(self.run_except(start, end, words), end, trail)
    }

    /// o200k: two kinds of words, each with an optional prefix, then numbers, signs and white space.
    #[inline(always)]
    fn o200k(&self, at: usize, end: usize, digits: usize, contractions: bool) -> usize {
        let c = self.char(at, end);
        if c.is(NUMBER) {
            return self.numbers(at, end, digits);
        }
        let after = at + c.len;
        let prefixed = !c.is(LETTER) && !is_newline(self.text[at]);
        // In the regex's order; the first branch that matches wins.
        let stop = (prefixed.then(|| self.ends_lower(after, end)).flatten())
            .or_else(|| self.ends_lower(at, end))
            .or_else(|| prefixed.then(|| self.starts_upper(after, end)).flatten())
            .or_else(|| self.starts_upper(at, end));
        match stop {
            Some(stop) if contractions => self.contraction(stop, end, true),
            Some(stop) => stop,
            None => self.signs_or_space(at, end, LETTER | NUMBER | SPACE, |b| is_newline(b) || b == b'/'),
        }
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
    #[inline(always)]
    fn ends_lower(&self, at: usize, end: usize) -> Option<usize> {
        let mut stop = at;
        let mut back = None; // where the first part could give a character to the second
        loop {
            let c = self.char(stop, end);
            if !c.is(UPPER | OTHER | MARK) {
                return if c.is(LOWER) { Some(self.run(stop + c.len, end, LOWER | OTHER | MARK)) } else { back };
            }
            stop += c.len;
            if c.is(OTHER | MARK) {
                back = Some(stop);
            }
        }
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
    #[inline(always)]
    fn starts_upper(&self, at: usize, end: usize) -> Option<usize> {
        let stop = self.run(at, end, UPPER | OTHER | MARK);
        (stop > at).then(|| self.run(stop, end, LOWER | OTHER | MARK))
    }

    /// The Digits pre-tokenizer asks the standard library what a number is, not the regex engine.
    fn digits_then_gpt2(&self, mut word: impl FnMut(usize, usize)) {
        let is_digit = |at: usize| {
            let first = self.text[at];
            if first < 0x80 {
                return (first.is_ascii_digit(), 1);
            }
            let (code, len) = self.wide(first, at);
            (char::from_u32(code).is_some_and(char::is_numeric), len)
        };
        let mut at = 0;
        while at < self.text.len() {
            let (digit, len) = is_digit(at);
            let mut stop = at + len;
            if digit {
                word(at, stop);
            } else {
                while stop < self.text.len() {
                    let (digit, len) = is_digit(stop);
                    if digit {
                        break;
                    }
                    stop += len;
                }
                self.each(at, stop, |at, end| self.gpt2(at, end), &mut word);
            }
            at = stop;
        }
    }

    /// `\p{N}{1,3}`, then `[Han and Kana]+` in what is left, then the third pattern within each part.
    fn deepseek(&self, mut word: impl FnMut(usize, usize)) {
        let end = self.text.len();
        let mut at = 0;
        while at < end {
            let c = self.char(at, end);
            let stop = if c.is(NUMBER) {
                let stop = self.numbers(at, end, 3);
                word(at, stop);
                stop
            } else {
                // The second pattern, too, ends where the first has cut.
                let stop = if c.is(HAN_KANA) {
                    self.run_within(at, end, HAN_KANA, NUMBER)
                } else {
                    self.run_except(at, end, HAN_KANA | NUMBER)
                };
                self.deepseek_part(at, stop, &mut word);
                stop
            };
            at = stop;
        }
    }

    /// `[classes--except]*`
    fn run_within(&self, mut at: usize, end: usize, classes: u8, except: u8) -> usize {
        loop {
            let c = self.char(at, end);
            if !c.is(classes) || c.is(except) {
                return at;
            }
            at += c.len;
        }
    }

    /// The third pattern doesn't match everything: what lies between two matches is a word as well.
    #[inline(always)]
    fn deepseek_part(&self, mut at: usize, end: usize, word: &mut impl FnMut(usize, usize)) {
        let mut gap = at;
        while at < end {
            match self.deepseek_match(at, end) {
                Some(stop) => {
                    if gap < at {
                        word(gap, at);
                    }
                    word(at, stop);
                    at = stop;
                    gap = stop;
                }
                None => at += self.char(at, end).len,
            }
        }
        if gap < end {
            word(gap, end);
        }
    }

    /// `[ASCII punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|white space`
    #[inline(always)]
    fn deepseek_match(&self, at: usize, end: usize) -> Option<usize> {
        let text = &self.text[..end];
        if text[at].is_ascii_punctuation() && text.get(at + 1).is_some_and(u8::is_ascii_alphabetic) {
            return Some(self.run_bytes(at + 2, end, |b| b.is_ascii_alphabetic()));
        }
        let c = self.char(at, end);
        if c.is(LETTER | MARK) {
            return Some(self.run(at + c.len, end, LETTER | MARK));
        }
        let next = self.char(at + c.len, end);
        if !c.is(SIGN) && !is_newline(text[at]) && next.is(LETTER | MARK) {
            return Some(self.run(at + c.len + next.len, end, LETTER | MARK));
        }
        if c.is(SIGN) || (text[at] == b' ' && next.is(SIGN)) {
            return Some(self.run_bytes(self.run(at + c.len, end, SIGN), end, is_newline));
        }
        c.is(SPACE).then(|| self.space(at, end, true))
    }
}
