//! Images as rows of three planes: the form in which decoders hand them on, and in which they are resized.
use super::Bad;

/// Bytes that every row has after its last pixel: vector code reads and writes beyond it.
pub const SLACK: usize = 64;

/// The distance between planes that hold rows of so many pixels.
pub fn stride(width: usize) -> usize {
    (width + SLACK).next_multiple_of(64)
}

/// Three planes of one row, each `stride` bytes, out of one piece of memory.
pub fn planes(row: &mut [u8], stride: usize) -> [&mut [u8]; 3] {
    let (r, rest) = row.split_at_mut(stride);
    let (g, b) = rest.split_at_mut(stride);
    [r, g, &mut b[..stride]]
}

/// An image that comes row by row, from the top.
pub trait Rows {
    /// Width and height in pixels.
    fn size(&self) -> (usize, usize);
    /// Writes the next row. Each plane holds at least `stride(width)` bytes.
    fn next(&mut self, out: [&mut [u8]; 3]) -> Result<(), Bad>;
}

/// Takes an image row by row, from the top.
pub trait Sink {
    /// Where row `y` is to be written: three planes of at least `stride(width)` bytes.
    fn row(&mut self, y: usize) -> [&mut [u8]; 3];
    /// Row `y` is there.
    fn done(&mut self, y: usize);
    /// Reports whether row `y` makes a difference; what doesn't need not be written.
    fn wants(&self, y: usize) -> bool {
        let _ = y;
        true
    }
}

/// A whole image in memory. `data` has, for each row, three planes of `stride` bytes.
#[derive(Default)]
pub struct Picture {
    pub width: usize,
    pub height: usize,
    pub stride: usize,
    pub data: Vec<u8>,
    next: usize,
}

impl Picture {
    /// A black image.
    pub fn new(width: usize, height: usize) -> Result<Picture, Bad> {
        let stride = stride(width);
        let bytes = stride.checked_mul(3 * height).ok_or(Bad::Memory)?;
        let mut data = Vec::new();
        data.try_reserve_exact(bytes).map_err(|_| Bad::Memory)?;
        data.resize(bytes, 0);
        Ok(Picture { width, height, stride, data, next: 0 })
    }

    /// All rows of another image.
    pub fn of(rows: &mut dyn Rows) -> Result<Picture, Bad> {
        let (width, height) = rows.size();
        let mut all = Picture::new(width, height)?;
        for y in 0..height {
            rows.next(all.row(y))?;
        }
        Ok(all)
    }

    /// Begins again with the first row.
    pub fn rewind(&mut self) {
        self.next = 0;
    }

    fn plane(&self, y: usize, plane: usize) -> &[u8] {
        let at = (y * 3 + plane) * self.stride;
        &self.data[at..at + self.width]
    }

    /// All rows of another image, turned and mirrored as an EXIF orientation of 2 to 8 asks; with any other it stays as
    /// it is.
    pub fn upright(rows: &mut dyn Rows, orientation: u16) -> Result<Picture, Bad> {
        match orientation {
            2..=4 => Picture::mirrored(rows, orientation != 4, orientation != 2),
            5..=8 => Picture::turned(rows, orientation),
            _ => Picture::of(rows),
        }
    }

    fn mirrored(rows: &mut dyn Rows, across: bool, down: bool) -> Result<Picture, Bad> {
        let (width, height) = rows.size();
        let mut all = Picture::new(width, height)?;
        for y in 0..height {
            let y = if down { height - 1 - y } else { y };
            rows.next(all.row(y))?;
            if across {
                all.row(y).into_iter().for_each(|plane| plane[..width].reverse());
            }
        }
        Ok(all)
    }

    /// Rows become columns, so many at a time: single ones would touch all of the memory for each.
    fn turned(rows: &mut dyn Rows, orientation: u16) -> Result<Picture, Bad> {
        const BAND: usize = 64;
        let (width, height) = rows.size();
        let mut all = Picture::new(height, width)?;
        let pitch = stride(width);
        let mut band = vec![0; 3 * pitch * BAND];
        let to_left = matches!(orientation, 6 | 7); // the first row is the last column
        let upwards = matches!(orientation, 7 | 8); // and its first pixel the lowest
        for y in (0..height).step_by(BAND) {
            let count = BAND.min(height - y);
            for row in band.chunks_exact_mut(3 * pitch).take(count) {
                rows.next(planes(row, pitch))?;
            }
            let left = if to_left { height - y - count } else { y };
            for x in 0..width {
                let row = all.row(if upwards { width - 1 - x } else { x });
                for (plane, row) in row.into_iter().enumerate() {
                    let column = band[plane * pitch + x..].iter().step_by(3 * pitch).take(count);
                    let to = &mut row[left..left + count];
                    if to_left {
                        to.iter_mut().rev().zip(column).for_each(|(d, s)| *d = *s);
                    } else {
                        to.iter_mut().zip(column).for_each(|(d, s)| *d = *s);
                    }
                }
            }
        }
        Ok(all)
    }
}

impl Rows for Picture {
    fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    fn next(&mut self, out: [&mut [u8]; 3]) -> Result<(), Bad> {
        let y = self.next;
        self.next += 1;
        for (plane, row) in out.into_iter().enumerate() {
            row[..self.width].copy_from_slice(self.plane(y, plane));
        }
        Ok(())
    }
}

impl Sink for Picture {
    fn row(&mut self, y: usize) -> [&mut [u8]; 3] {
        let at = y * 3 * self.stride;
        planes(&mut self.data[at..at + 3 * self.stride], self.stride)
    }

    fn done(&mut self, _: usize) {}
}

/// Rows in which one colour has been replaced by white.
pub struct KeyToWhite<'a> {
    pub rows: &'a mut dyn Rows,
    pub key: [u8; 3],
}

impl Rows for KeyToWhite<'_> {
    fn size(&self) -> (usize, usize) {
        self.rows.size()
    }

    fn next(&mut self, out: [&mut [u8]; 3]) -> Result<(), Bad> {
        let [r, g, b] = out;
        self.rows.next([&mut *r, &mut *g, &mut *b])?;
        for x in 0..self.size().0 {
            if [r[x], g[x], b[x]] == self.key {
                (r[x], g[x], b[x]) = (255, 255, 255);
            }
        }
        Ok(())
    }
}
