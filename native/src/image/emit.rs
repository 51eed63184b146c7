//! Writing the rows of a finished image as an engine takes them.
use super::lanes;
use super::rows::{planes, stride, Sink};

/// What each of a channel's 256 values becomes: three tables of so many bytes a value.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    pub table: &'a [u8],
    pub bytes: usize, // 1, 2 or 4
}

impl Values<'_> {
    pub fn channel(&self, plane: usize) -> &[u8] {
        let bytes = 256 * self.bytes;
        &self.table[plane * bytes..(plane + 1) * bytes]
    }

    /// Writes a row of one channel.
    #[inline(always)]
    fn put(&self, plane: usize, row: &[u8], out: &mut [u8]) {
        let table = self.channel(plane);
        match self.bytes {
            1 => one(table, row, out),
            2 => put::<2>(table, row, out),
            _ => put::<4>(table, row, out),
        }
    }
}

#[inline(always)]
fn one(table: &[u8], row: &[u8], out: &mut [u8]) {
    let table: &[u8; 256] = table.try_into().unwrap_or(&[0; 256]);
    for (o, v) in out.iter_mut().zip(row) {
        *o = table[*v as usize];
    }
}

#[inline(always)]
fn put<const N: usize>(table: &[u8], row: &[u8], out: &mut [u8]) {
    let (table, _) = table.as_chunks::<N>();
    let Ok(table): Result<&[[u8; N]; 256], _> = table.try_into() else { return };
    let (out, _) = out.as_chunks_mut::<N>();
    for (o, v) in out.iter_mut().zip(row) {
        *o = table[*v as usize];
    }
}

/// Pixels of three bytes.
pub struct Interleaved<'a> {
    width: usize,
    line: Vec<u8>,
    out: &'a mut [u8],
}

impl<'a> Interleaved<'a> {
    pub fn new(width: usize, out: &'a mut [u8]) -> Self {
        Interleaved { width, line: vec![0; 3 * stride(width)], out }
    }
}

impl Sink for Interleaved<'_> {
    fn row(&mut self, _: usize) -> [&mut [u8]; 3] {
        planes(&mut self.line, stride(self.width))
    }

    fn done(&mut self, y: usize) {
        let bytes = 3 * self.width;
        let [r, g, b] = planes(&mut self.line, stride(self.width));
        lanes::join3(r, g, b, &mut self.out[y * bytes..(y + 1) * bytes]);
    }
}

/// The place of an image on a canvas that is cut into tiles. What the image doesn't cover is black; what hangs over is
/// cut off.
#[derive(Clone, Copy, Debug)]
pub struct Canvas {
    pub width: usize,
    pub height: usize,
    pub left: isize,
    pub top: isize,
    pub tile_width: usize,
    pub tile_height: usize,
}

/// Tiles one after the other, each of three planes.
pub struct Tiles<'a> {
    canvas: Canvas,
    width: usize, // of the image
    values: Values<'a>,
    line: Vec<u8>,
    out: &'a mut [u8],
}

impl<'a> Tiles<'a> {
    pub fn new(size: (usize, usize), canvas: Canvas, values: Values<'a>, out: &'a mut [u8]) -> Self {
        let covered = |from: isize, len: usize, all: usize| from <= 0 && from + len as isize >= all as isize;
        if !covered(canvas.left, size.0, canvas.width) || !covered(canvas.top, size.1, canvas.height) {
            let plane = canvas.tile_width * canvas.tile_height * values.bytes;
            for (i, plane) in out.chunks_exact_mut(plane).enumerate() {
                let black = &values.channel(i % 3)[..values.bytes];
                plane.chunks_exact_mut(values.bytes).for_each(|o| o.copy_from_slice(black));
            }
        }
        Tiles { canvas, width: size.0, values, line: vec![0; 3 * stride(size.0)], out }
    }
}

impl Sink for Tiles<'_> {
    fn row(&mut self, _: usize) -> [&mut [u8]; 3] {
        planes(&mut self.line, stride(self.width))
    }

    fn wants(&self, y: usize) -> bool {
        (0..self.canvas.height as isize).contains(&(y as isize + self.canvas.top))
    }

    fn done(&mut self, y: usize) {
        if !self.wants(y) {
            return;
        }
        let c = self.canvas;
        let y = (y as isize + c.top) as usize;
        let (tile_row, row) = (y / c.tile_height, y % c.tile_height);
        let right = (c.left + self.width as isize).min(c.width as isize);
        let pitch = stride(self.width);
        for column in 0..c.width / c.tile_width {
            // The part of the tile's row that the image covers, in pixels of the canvas.
            let begin = ((column * c.tile_width) as isize).max(c.left);
            let end = (((column + 1) * c.tile_width) as isize).min(right);
            if begin >= end {
                continue;
            }
            let tile = tile_row * (c.width / c.tile_width) + column;
            let (from, count) = ((begin - c.left) as usize, (end - begin) as usize);
            for plane in 0..3 {
                let at = ((tile * 3 + plane) * c.tile_height + row) * c.tile_width + begin as usize % c.tile_width;
                let out = &mut self.out[at * self.values.bytes..(at + count) * self.values.bytes];
                self.values.put(plane, &self.line[plane * pitch + from..][..count], out);
            }
        }
    }
}

/// How an image is cut into patches: squares of `side`, in groups of `merge` by `merge`, each `frames` times.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub side: usize,
    pub merge: usize,
    pub frames: usize,
}

/// How far `twice` may write beyond a patch.
const OVERHANG: usize = 16;

/// Patches: groups by rows and columns, in a group patches by rows and columns, in a patch channels, frames, rows.
pub struct Patches<'a> {
    cut: Cut,
    width: usize,
    values: Values<'a>,
    plain: bool,    // values stay what they are
    band: Vec<u8>,  // rows of one row of groups
    group: Vec<u8>, // one group, before it goes out
    out: &'a mut [u8],
}

impl<'a> Patches<'a> {
    pub fn new(width: usize, cut: Cut, values: Values<'a>, out: &'a mut [u8]) -> Self {
        let same = |table: &[u8]| table.iter().enumerate().all(|(i, &v)| i == v as usize);
        let plain = values.bytes == 1 && (0..3).all(|k| same(values.channel(k)));
        let band = vec![0; 3 * stride(width) * cut.side * cut.merge];
        let group = vec![0; cut.merge * cut.merge * 3 * cut.frames * cut.side * cut.side * values.bytes + OVERHANG];
        Patches { cut, width, values, plain, band, group, out }
    }

    /// Writes one row of groups, with patches of a size known to the compiler. Other sizes have SIDE 0.
    #[inline(always)]
    fn write<const SIDE: usize>(&mut self, group_row: usize) {
        let Cut { side, merge, frames } = self.cut;
        let side = if SIDE == 0 { side } else { SIDE };
        let pitch = stride(self.width);
        let square = side * side * self.values.bytes;
        let patch_bytes = 3 * frames * square;
        let bytes = self.group.len() - OVERHANG;
        let groups = self.width / (side * merge);
        let out = &mut self.out[group_row * groups * bytes..][..groups * bytes];
        for (x, out) in out.chunks_exact_mut(bytes).enumerate() {
            for i in 0..merge * merge {
                let at = i / merge * side * 3 * pitch + (x * merge + i % merge) * side;
                for plane in 0..3 {
                    let source = &self.band[at + plane * pitch..];
                    let out = &mut self.group[i * patch_bytes + plane * frames * square..];
                    if SIDE != 0 && self.plain && frames == 2 {
                        twice::<SIDE>(source, 3 * pitch, out);
                        continue;
                    }
                    let (one, others) = out[..frames * square].split_at_mut(square);
                    for (row, out) in one.chunks_exact_mut(side * self.values.bytes).enumerate() {
                        self.values.put(plane, &source[row * 3 * pitch..][..side], out);
                    }
                    others.chunks_exact_mut(square).for_each(|o| o.copy_from_slice(one));
                }
            }
            lanes::send(&self.group[..bytes], out);
        }
    }
}

/// A square of bytes, two times over. Rows go 16 bytes at a time: what is too much is overwritten by the next one, and
/// behind the last one there is room for it. The second square isn't copied from the first: what has just been stored in
/// small pieces can't be loaded in large ones at once.
#[inline(always)]
fn twice<const SIDE: usize>(source: &[u8], pitch: usize, out: &mut [u8]) {
    for square in 0..2 {
        for row in 0..SIDE {
            let (from, to) = (&source[row * pitch..][..16], &mut out[(square * SIDE + row) * SIDE..][..16]);
            to.copy_from_slice(from);
        }
    }
}

impl Sink for Patches<'_> {
    fn row(&mut self, y: usize) -> [&mut [u8]; 3] {
        let pitch = stride(self.width);
        let at = y % (self.cut.side * self.cut.merge) * 3 * pitch;
        planes(&mut self.band[at..at + 3 * pitch], pitch)
    }

    fn done(&mut self, y: usize) {
        let rows = self.cut.side * self.cut.merge;
        if y % rows != rows - 1 {
            return;
        }
        match self.cut.side {
            14 => self.write::<14>(y / rows),
            16 => self.write::<16>(y / rows),
            _ => self.write::<0>(y / rows),
        }
    }
}
