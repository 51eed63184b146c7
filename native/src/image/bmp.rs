//! BMP, the parts that PIL reads: 1 to 32 bits a pixel, bit masks, run lengths.
use super::rows::Rows;
use super::Bad;

fn bad<T>(text: &str) -> Result<T, Bad> {
    Err(Bad::File(text.into()))
}

fn u16_at(b: &[u8], at: usize) -> Result<u32, Bad> {
    match b.get(at..at + 2) {
        Some(v) => Ok(u16::from_le_bytes([v[0], v[1]]) as u32),
        None => bad("it is truncated"),
    }
}

fn u32_at(b: &[u8], at: usize) -> Result<u32, Bad> {
    match b.get(at..at + 4) {
        Some(v) => Ok(u32::from_le_bytes([v[0], v[1], v[2], v[3]])),
        None => bad("it is truncated"),
    }
}

const RAW: u32 = 0;
const RLE8: u32 = 1;
const RLE4: u32 = 2;
const MASKS: u32 = 3;

/// The header of a file.
pub struct Head {
    width: usize,
    height: usize,
    top_down: bool,
    bits: u32,
    compression: u32,
    masks: [u32; 3],
    palette: Vec<[u8; 3]>,
    data: usize, // where the pixels begin
}

/// Width and height.
pub fn header(file: &[u8]) -> Result<(usize, usize), Bad> {
    head(file).map(|h| (h.width, h.height))
}

fn head(file: &[u8]) -> Result<Head, Bad> {
    let data = u32_at(file, 10)? as usize;
    let size = u32_at(file, 14)? as usize;
    let old = size == 12;
    if !old && !(40..=124).contains(&size) {
        return bad("its header has an unknown size");
    }
    let (width, rows, bits, compression) = if old {
        (u16_at(file, 18)? as i64, u16_at(file, 20)? as i64, u16_at(file, 24)?, RAW)
    } else {
        (u32_at(file, 18)? as i32 as i64, u32_at(file, 22)? as i32 as i64, u16_at(file, 28)?, u32_at(file, 30)?)
    };
    if width <= 0 || rows == 0 {
        return bad("it has no pixels");
    }
    let mut head = Head {
        width: width as usize,
        height: rows.unsigned_abs() as usize,
        top_down: rows < 0,
        bits,
        compression,
        masks: if bits == 16 { [0x7c00, 0x3e0, 0x1f] } else { [0xff0000, 0xff00, 0xff] },
        palette: vec![],
        data,
    };
    let mut after = 14 + size;
    match (compression, bits) {
        (RAW, 1 | 4 | 8 | 16 | 24 | 32) | (RLE8, 8) | (RLE4, 4) => {}
        (MASKS, 16 | 24 | 32) => {
            // Behind the old header, or part of a newer one: the same place.
            for (k, mask) in head.masks.iter_mut().enumerate() {
                *mask = u32_at(file, 54 + 4 * k)?;
            }
            after = after.max(66);
        }
        _ => return bad("its kind of BMP isn't supported"),
    }
    if bits <= 8 {
        let named = if old { 0 } else { u32_at(file, 46)? as usize };
        let entry = if old { 3 } else { 4 };
        let count = if named == 0 { 1 << bits } else { named.min(256) };
        let colours = file.get(after..).unwrap_or_default().chunks_exact(entry).take(count);
        head.palette = colours.map(|c| [c[2], c[1], c[0]]).collect();
    }
    Ok(head)
}

/// A decoded file, or one whose rows can be read in place.
pub struct Open<'a> {
    head: Head,
    pixels: std::borrow::Cow<'a, [u8]>,
    pitch: usize,
    next: usize,
}

pub fn open(file: &[u8]) -> Result<Open<'_>, Bad> {
    let head = head(file)?;
    let data = file.get(head.data..).unwrap_or_default();
    if head.compression == RLE8 || head.compression == RLE4 {
        let pixels = unpack(&head, data)?;
        let pitch = head.width;
        return Ok(Open { head: Head { bits: 8, ..head }, pixels: pixels.into(), pitch, next: 0 });
    }
    let pitch = (head.width * head.bits as usize).div_ceil(32) * 4;
    let last = pitch * (head.height - 1) + (head.width * head.bits as usize).div_ceil(8);
    if data.len() < last {
        return bad("it is truncated");
    }
    Ok(Open { head, pixels: data.into(), pitch, next: 0 })
}

/// Run lengths to one byte a pixel. What isn't written is colour 0.
fn unpack(head: &Head, data: &[u8]) -> Result<Vec<u8>, Bad> {
    let (w, total) = (head.width, head.width * head.height);
    let mut out = Vec::new();
    out.try_reserve_exact(total).map_err(|_| Bad::Memory)?;
    let nibble = head.compression == RLE4;
    let at = |v: u8, i: usize| if !nibble { v } else if i % 2 == 0 { v >> 4 } else { v & 15 };
    let mut bytes = data.iter().copied();
    let mut x = 0;
    while out.len() < total {
        let (Some(count), Some(value)) = (bytes.next(), bytes.next()) else { return bad("it is truncated") };
        if count > 0 {
            let run = (count as usize).min(w - x);
            out.extend((0..run).map(|i| at(value, i)));
            x += run;
            continue;
        }
        match value {
            0 => {
                out.resize(out.len().next_multiple_of(w).min(total), 0);
                x = 0;
            }
            1 => break,
            2 => {
                let (Some(right), Some(up)) = (bytes.next(), bytes.next()) else { return bad("it is truncated") };
                let skip = right as usize + up as usize * w;
                out.resize((out.len() + skip).min(total), 0);
                x = out.len() % w;
            }
            n => {
                let n = n as usize;
                let packed = if nibble { n.div_ceil(2) } else { n };
                let literal: Vec<u8> = bytes.by_ref().take(packed).collect();
                if literal.len() < packed {
                    return bad("it is truncated");
                }
                let run = n.min(total - out.len());
                out.extend((0..run).map(|i| at(literal[if nibble { i / 2 } else { i }], i)));
                x = out.len() % w;
                if packed % 2 == 1 {
                    bytes.next();
                }
            }
        }
        if x == w {
            x = 0;
        }
    }
    out.resize(total, 0);
    Ok(out)
}

impl Rows for Open<'_> {
    fn size(&self) -> (usize, usize) {
        (self.head.width, self.head.height)
    }

    fn next(&mut self, [r, g, b]: [&mut [u8]; 3]) -> Result<(), Bad> {
        let h = &self.head;
        let rle = h.compression == RLE8 || h.compression == RLE4;
        let y = if h.top_down { self.next } else { h.height - 1 - self.next };
        let row = &self.pixels[y * self.pitch..];
        let indexed = |i: u8| h.palette.get(i as usize).copied().unwrap_or_default();
        for x in 0..h.width {
            [r[x], g[x], b[x]] = match h.bits {
                _ if rle => indexed(row[x]),
                1 => indexed(row[x / 8] >> (7 - x % 8) & 1),
                4 => indexed(row[x / 2] >> (4 - x % 2 * 4) & 15),
                8 => indexed(row[x]),
                16 => h.masked(u16::from_le_bytes([row[2 * x], row[2 * x + 1]]) as u32),
                24 => h.masked(u32::from_le_bytes([row[3 * x], row[3 * x + 1], row[3 * x + 2], 0])),
                _ => h.masked(u32::from_le_bytes([row[4 * x], row[4 * x + 1], row[4 * x + 2], row[4 * x + 3]])),
            };
        }
        self.next += 1;
        Ok(())
    }
}

impl Head {
    /// A pixel's channels, brought to 8 bits.
    fn masked(&self, pixel: u32) -> [u8; 3] {
        self.masks.map(|mask| {
            let shift = mask.trailing_zeros();
            if shift == 32 {
                return 0;
            }
            let largest = (mask >> shift) as u64;
            (((pixel & mask) >> shift) as u64 * 255 / largest) as u8
        })
    }
}
