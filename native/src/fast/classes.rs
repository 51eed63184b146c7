//! Character classes: one byte for every code point.
//!
//! The table is a file rather than a crate's tables because its Unicode version must be that of the regex engine which
//! the `tokenizers` crate links (Oniguruma): another version splits newly assigned characters differently.
//! `examples/gen_classes.rs` writes it.

pub const UPPER: u8 = 1 << 0; // Lu, Lt
pub const LOWER: u8 = 1 << 1; // Ll
pub const OTHER: u8 = 1 << 2; // Lm, Lo
pub const MARK: u8 = 1 << 3; // M
pub const NUMBER: u8 = 1 << 4; // N
pub const SIGN: u8 = 1 << 5; // P, S
pub const SPACE: u8 = 1 << 6; // \s
pub const HAN_KANA: u8 = 1 << 7; // the ranges that DeepSeek's pattern names
pub const LETTER: u8 = UPPER | LOWER | OTHER;

/// Number of 256-code-point pages.
pub const PAGES: usize = 0x110000 >> 8;

/// For each page the number of its block, then the blocks of 256 classes. Equal pages share a block.
static TABLE: &[u8] = include_bytes!("classes.bin");

/// The classes of the first 128 code points, for the short way.
static ASCII: [u8; 128] = ascii();

const fn ascii() -> [u8; 128] {
    let table = include_bytes!("classes.bin");
    let block = PAGES + (table[0] as usize) * 256;
    let mut classes = [0; 128];
    let mut i = 0;
    while i < 128 {
        classes[i] = table[block + i];
        i += 1;
    }
    classes
}

/// The classes of an ASCII byte.
#[inline(always)]
pub fn of_ascii(byte: u8) -> u8 {
    ASCII[(byte & 0x7f) as usize]
}

/// The classes of any code point.
#[inline(always)]
pub fn of(code: u32) -> u8 {
    let block = TABLE[(code >> 8) as usize] as usize;
    TABLE[PAGES + (block << 8) + (code & 0xff) as usize]
}
