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

    /// The image turned and mirrored as an EXIF orientation of 2 to 8 asks; any other leaves it as it is.
    pub fn upright(self, orientation: u16) -> Result<Picture, Bad> {
        if !(2..=8).contains(&orientation) {
            return Ok(self);
        }
        let (w, h) = (self.width, self.height);
        let turned = orientation >= 5;
        let mut out = if turned { Picture::new(h, w)? } else { Picture::new(w, h)? };
        // Where a row of the result begins in the source and how it goes on, in steps of x and y.
        for y in 0..out.height {
            for plane in 0..3 {
                let at = (y * 3 + plane) * out.stride;
                let row = &mut out.data[at..at + out.width];
                match orientation {
                    2 => row.iter_mut().zip(self.plane(y, plane).iter().rev()).for_each(|(d, s)| *d = *s),
                    3 => row.iter_mut().zip(self.plane(h - 1 - y, plane).iter().rev()).for_each(|(d, s)| *d = *s),
                    4 => row.copy_from_slice(self.plane(h - 1 - y, plane)),
                    _ => {
                        let x = if orientation == 5 || orientation == 6 { y } else { w - 1 - y };
                        let down = orientation == 5 || orientation == 8;
                        let first = plane * self.stride + x;
                        for (i, d) in row.iter_mut().enumerate() {
                            let line = if down { i } else { h - 1 - i };
                            *d = self.data[line * 3 * self.stride + first];
                        }
                    }
                }
            }
        }
        Ok(out)
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
