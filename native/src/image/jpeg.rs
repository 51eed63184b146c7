//! JPEG: libjpeg (mozjpeg) decodes; chroma is brought to full size and turned to RGB here, with the same result.
use super::lanes;
use super::rows::{stride, Rows};
use super::Bad;
use mozjpeg_sys as _; // links it
use std::ffi::{c_char, c_int, CStr};

#[repr(C)]
struct State {
    _private: [u8; 0],
}

/// What the header says; see jpeg.c.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Info {
    pub width: u32,
    pub height: u32,
    pub components: u32,
    pub planar: u32,
    pub h: u32,
    pub v: u32,
    pub rows: u32,
}

extern "C" {
    fn portico_jpeg_new() -> *mut State;
    fn portico_jpeg_free(j: *mut State);
    fn portico_jpeg_message(j: *const State) -> *const c_char;
    fn portico_jpeg_open(j: *mut State, data: *const u8, len: usize, out: *mut Info) -> c_int;
    fn portico_jpeg_start(j: *mut State, planes: c_int, room: usize) -> c_int;
    fn portico_jpeg_row(j: *mut State, row: *mut u8) -> c_int;
    fn portico_jpeg_planes(j: *mut State, plane: *const *mut u8, stride: *const usize) -> c_int;
    fn portico_jpeg_close(j: *mut State);
}

/// A decoder that is used again and again, by one thread at a time.
pub struct Jpeg {
    state: *mut State,
    bands: [Vec<u8>; 3], // two bands of each component
    chroma: [Vec<u8>; 2], // a row of each, at full width
    sums: Vec<u16>,
    row: Vec<u8>,
}

// The state isn't tied to the thread that made it.
unsafe impl Send for Jpeg {}

impl Jpeg {
    pub fn new() -> Result<Jpeg, Bad> {
        let state = unsafe { portico_jpeg_new() };
        if state.is_null() {
            return Err(Bad::Memory);
        }
        Ok(Jpeg { state, bands: Default::default(), chroma: Default::default(), sums: vec![], row: vec![] })
    }

    fn check(&self, result: c_int) -> Result<(), Bad> {
        if result == 0 {
            return Ok(());
        }
        let text = unsafe { CStr::from_ptr(portico_jpeg_message(self.state)) };
        Err(Bad::File(text.to_string_lossy().trim_end_matches('.').to_string()))
    }

    /// Reads the header alone.
    pub fn header(&mut self, file: &[u8]) -> Result<Info, Bad> {
        let mut info = Info::default();
        let result = unsafe { portico_jpeg_open(self.state, file.as_ptr(), file.len(), &mut info) };
        let result = self.check(result);
        unsafe { portico_jpeg_close(self.state) };
        result.map(|()| info)
    }

    /// Begins to decode.
    ///
    /// `narrow` keeps to libjpeg's own conversions, for tests. `room` is how much memory may be taken.
    pub fn open<'a>(&'a mut self, file: &'a [u8], narrow: bool, room: usize) -> Result<Open<'a>, Bad> {
        let mut info = Info::default();
        self.check(unsafe { portico_jpeg_open(self.state, file.as_ptr(), file.len(), &mut info) })?;
        info.planar &= !narrow as u32;
        self.check(unsafe { portico_jpeg_start(self.state, info.planar as c_int, room) })?;
        let (w, v) = (info.width as usize, info.v as usize);
        let mut open = Open { info, strides: [0; 3], height: 8, fetched: 0, next: 0, jpeg: self, _file: file };
        if info.planar != 0 {
            open.strides = [(w + 64).next_multiple_of(64), (w / info.h as usize + 64).next_multiple_of(64), 0];
            open.strides[2] = open.strides[1];
            for k in 0..3 {
                let rows = if k == 0 { 8 * v } else { 8 };
                open.jpeg.bands[k].resize(2 * rows * open.strides[k], 0);
            }
            open.jpeg.chroma.iter_mut().for_each(|c| c.resize(stride(w) + 2, 0));
            open.jpeg.sums.resize(open.strides[1], 0);
        } else {
            open.jpeg.row.resize(w * info.components as usize, 0);
        }
        Ok(open)
    }
}

impl Drop for Jpeg {
    fn drop(&mut self) {
        unsafe { portico_jpeg_free(self.state) }
    }
}

/// An image being decoded.
pub struct Open<'a> {
    jpeg: &'a mut Jpeg,
    info: Info,
    strides: [usize; 3],
    height: usize,  // rows of chroma in a band
    fetched: usize, // bands read; the last two are there
    next: usize,
    _file: &'a [u8], // the state points into it
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        unsafe { portico_jpeg_close(self.jpeg.state) }
    }
}

impl Open<'_> {
    /// Reads the bands up to number `band`.
    fn fetch(&mut self, band: usize) -> Result<(), Bad> {
        while self.fetched <= band {
            let half = self.fetched % 2;
            let mut planes = [std::ptr::null_mut(); 3];
            for (k, plane) in planes.iter_mut().enumerate() {
                let bytes = self.jpeg.bands[k].len() / 2;
                *plane = self.jpeg.bands[k][half * bytes..].as_mut_ptr();
            }
            let result = unsafe { portico_jpeg_planes(self.jpeg.state, planes.as_ptr(), self.strides.as_ptr()) };
            self.jpeg.check(result)?;
            self.fetched += 1;
        }
        Ok(())
    }

    /// Row `y` of component `k`, of which a band has `rows` rows.
    fn line(&self, k: usize, y: usize, rows: usize, width: usize) -> &[u8] {
        let at = (y % (2 * rows)) * self.strides[k];
        &self.jpeg.bands[k][at..at + width]
    }

    fn planar_row(&mut self, out: [&mut [u8]; 3]) -> Result<(), Bad> {
        let (w, h) = self.size();
        let (y, v) = (self.next, self.info.v as usize);
        let luma_rows = 8 * v;
        let chroma_rows = h.div_ceil(v);
        let near = y / v;
        // The second row of chroma that plays a part: above for even rows, below for odd ones.
        let far = if v == 1 || y % 2 == 0 { near.saturating_sub(1) } else { (near + 1).min(chroma_rows - 1) };
        self.fetch((y / luma_rows).max(far / self.height))?;
        let mut chroma = std::mem::take(&mut self.jpeg.chroma);
        let mut sums = std::mem::take(&mut self.jpeg.sums);
        let half = w.div_ceil(self.info.h as usize);
        for k in 1..3 {
            let near = self.line(k, near, self.height, half);
            let full = &mut chroma[k - 1];
            match (self.info.h, v) {
                (1, _) => full[..w].copy_from_slice(near),
                (_, 1) => lanes::double_row(near, full),
                _ => {
                    lanes::lean(near, self.line(k, far, self.height, half), &mut sums[..half]);
                    lanes::double_sums(&sums[..half], full);
                }
            }
        }
        let [r, g, b] = out;
        lanes::colour(self.line(0, y, luma_rows, w), &chroma[0], &chroma[1], r, g, b);
        (self.jpeg.chroma, self.jpeg.sums) = (chroma, sums);
        Ok(())
    }
}

impl Rows for Open<'_> {
    fn size(&self) -> (usize, usize) {
        (self.info.width as usize, self.info.height as usize)
    }

    fn next(&mut self, out: [&mut [u8]; 3]) -> Result<(), Bad> {
        if self.info.planar != 0 {
            self.planar_row(out)?;
            self.next += 1;
            return Ok(());
        }
        let mut row = std::mem::take(&mut self.jpeg.row);
        let result = self.jpeg.check(unsafe { portico_jpeg_row(self.jpeg.state, row.as_mut_ptr()) });
        let w = self.info.width as usize;
        let [r, g, b] = out;
        match self.info.components {
            1 => {
                for plane in [r, g, b] {
                    plane[..w].copy_from_slice(&row);
                }
            }
            3 => lanes::split3(&row, r, g, b),
            _ => {
                for (x, p) in row.chunks_exact(4).enumerate() {
                    (r[x], g[x], b[x]) = (ink(p[0], p[3]), ink(p[1], p[3]), ink(p[2], p[3]));
                }
            }
        }
        self.jpeg.row = row;
        result
    }
}

/// One channel of CMYK, inverted as in files of Adobe's, to RGB as PIL does it.
fn ink(c: u8, k: u8) -> u8 {
    let (c, k) = (255 - c as u32, k as u32);
    let t = c * k + 128;
    let share = ((t >> 8) + t) >> 8;
    k.saturating_sub(share) as u8
}
