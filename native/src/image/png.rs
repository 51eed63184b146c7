//! PNG: the `png` crate decodes row by row; 16-bit values are cut to bytes as PIL does.
use super::rows::Rows;
use super::{lanes, Bad};
use png::{BitDepth, ColorType, Decoder, Limits, Reader, Transformations};
use std::io::Cursor;

/// What the crate may allocate besides rows: profiles and texts aren't read.
const ANCILLARY_BYTES: usize = 64 << 20;

fn bad(e: png::DecodingError) -> Bad {
    match e {
        png::DecodingError::LimitsExceeded => Bad::Memory,
        png::DecodingError::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            Bad::File("it is truncated".into())
        }
        e => Bad::File(e.to_string()),
    }
}

fn reader(file: &[u8]) -> Result<Reader<Cursor<&[u8]>>, Bad> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), Limits { bytes: ANCILLARY_BYTES });
    decoder.set_transformations(Transformations::EXPAND);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.read_info().map_err(bad)
}

/// Width and height.
pub fn header(file: &[u8]) -> Result<(usize, usize), Bad> {
    // The first chunk has them: nothing else need be read.
    let fixed = file.get(16..24).filter(|_| file.get(12..16) == Some(b"IHDR"));
    let fixed = fixed.ok_or_else(|| Bad::File("it is truncated".into()))?;
    let at = |i: usize| u32::from_be_bytes([fixed[i], fixed[i + 1], fixed[i + 2], fixed[i + 3]]) as usize;
    Ok((at(0), at(4)))
}

/// How a decoded row becomes three planes.
#[derive(Clone, Copy)]
struct Shape {
    channels: usize, // 1 or 2: gray; 3 or 4: colour; even numbers have alpha, which is dropped
    bytes: usize,    // of a value
    clip: bool,      // values above 255 become 255
}

/// An image being decoded.
pub struct Open<'a> {
    reader: Reader<Cursor<&'a [u8]>>,
    shape: Shape,
    row: Vec<u8>,
    whole: Option<Vec<u8>>, // an interlaced image
    next: usize,
    /// The colour that stands for transparency, where the file has just one.
    pub key: Option<[u8; 3]>,
}

/// `room` is how much memory may be taken: an interlaced image is decoded as a whole.
pub fn open(file: &[u8], room: usize) -> Result<Open<'_>, Bad> {
    let mut reader = reader(file)?;
    let (color, depth) = reader.output_color_type();
    let bytes = if depth == BitDepth::Sixteen { 2 } else { 1 };
    let info = reader.info();
    // PIL reads 16-bit gray as whole numbers and cuts them off at 255; of all others it takes the upper byte.
    let clip = info.color_type == ColorType::Grayscale && bytes == 2;
    let shape = Shape { channels: color.samples(), bytes, clip };
    let key = key(info);
    let interlaced = info.interlaced;
    let row = vec![0; reader.output_line_size(info.width).ok_or(Bad::Memory)?];
    let mut whole = None;
    if interlaced {
        let size = reader.output_buffer_size().ok_or(Bad::Memory)?;
        if size > room {
            return Err(Bad::File("it takes too much memory: it is interlaced".into()));
        }
        let mut all = Vec::new();
        all.try_reserve_exact(size).map_err(|_| Bad::Memory)?;
        all.resize(size, 0);
        reader.next_frame(&mut all).map_err(bad)?;
        whole = Some(all);
    }
    Ok(Open { reader, shape, row, whole, next: 0, key })
}

/// The transparent colour, where PIL keeps one: a palette with one wholly transparent entry, or a gray or RGB value.
fn key(info: &png::Info) -> Option<[u8; 3]> {
    let trns = info.trns.as_deref()?;
    match info.color_type {
        ColorType::Indexed => {
            let index = trns.iter().position(|&a| a == 0)?;
            let rest_is_opaque = trns.iter().enumerate().all(|(i, &a)| a == 255 || i == index);
            let colour = info.palette.as_deref()?.get(3 * index..3 * index + 3)?;
            rest_is_opaque.then(|| [colour[0], colour[1], colour[2]])
        }
        ColorType::Grayscale if info.bit_depth == BitDepth::Eight => trns.get(1).map(|&v| [v; 3]),
        ColorType::Rgb if info.bit_depth == BitDepth::Eight && trns.len() >= 6 => Some([trns[1], trns[3], trns[5]]),
        _ => None,
    }
}

impl Shape {
    fn split(self, row: &[u8], width: usize, out: [&mut [u8]; 3]) {
        let [r, g, b] = out;
        match (self.channels, self.bytes) {
            (3, 1) => return lanes::split3(row, r, g, b),
            (4, 1) => return lanes::split4(row, r, g, b),
            _ => {}
        }
        let step = self.channels * self.bytes;
        let value = |at: usize| if self.clip && row[at] > 0 { 255 } else { row[at + self.clip as usize] };
        for x in 0..width {
            let at = x * step;
            if self.channels < 3 {
                let v = value(at);
                (r[x], g[x], b[x]) = (v, v, v);
            } else {
                (r[x], g[x], b[x]) = (row[at], row[at + self.bytes], row[at + 2 * self.bytes]);
            }
        }
    }
}

impl Rows for Open<'_> {
    fn size(&self) -> (usize, usize) {
        (self.reader.info().width as usize, self.reader.info().height as usize)
    }

    fn next(&mut self, out: [&mut [u8]; 3]) -> Result<(), Bad> {
        let (width, _) = self.size();
        let bytes = self.row.len();
        if let Some(whole) = &self.whole {
            self.shape.split(&whole[self.next * bytes..(self.next + 1) * bytes], width, out);
        } else {
            self.reader.read_row(&mut self.row).map_err(bad)?.ok_or_else(|| Bad::File("it is truncated".into()))?;
            self.shape.split(&self.row, width, out);
        }
        self.next += 1;
        Ok(())
    }
}
