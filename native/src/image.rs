//! Images: files to the pixels that PIL makes of them, and those to what an engine's processor makes, to the last bit.
//!
//! - [`rows`] is the form in which images are handed on: row by row, in three planes. [`jpeg`], [`png`], [`webp`],
//!   [`gif`] and [`bmp`] produce it, [`exif`] says which way is up.
//! - [`axis`], [`resize`], [`horizontal`] and [`vertical`] resize by PyTorch's rule and by Pillow's.
//! - [`emit`] writes pixels, tiles or patches in the engine's element type, straight to where the caller wants them.
//!
//! Which steps a model needs is decided by the caller. Files are never trusted: the decoders are well-known libraries,
//! dimensions are checked before anything is decoded, and memory is asked for in a way that may fail. A [`Worker`] holds
//! all scratch memory and serves one call at a time.
pub mod axis;
pub mod bmp;
pub mod emit;
pub mod exif;
pub mod gif;
pub mod horizontal;
pub mod jpeg;
pub mod lanes;
pub mod png;
pub mod resize;
pub mod rows;
pub mod vertical;
pub mod webp;

use crate::tok::{borrow, Array};
use axis::Filter;
use resize::{Rule, Scratch, Target};
use rows::{KeyToWhite, Picture, Rows};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Why there is no result. The numbers of `code` are part of the interface.
#[derive(Debug)]
pub enum Bad {
    /// The file can't be decoded; the text says why.
    File(String),
    /// More pixels than allowed: width and height.
    Pixels(usize, usize),
    /// There isn't enough memory.
    Memory,
    /// The call makes no sense.
    Internal,
}

impl Bad {
    fn code(&self) -> i32 {
        match self {
            Bad::File(_) => 1,
            Bad::Pixels(..) => 2,
            Bad::Memory => 3,
            Bad::Internal => 4,
        }
    }

    fn text(self) -> String {
        match self {
            Bad::File(text) => text,
            Bad::Pixels(w, h) => format!("{w} x {h}"),
            Bad::Memory => "there isn't enough memory".into(),
            Bad::Internal => "steps and buffer don't fit the image".into(),
        }
    }
}

/// A file's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Format {
    Jpeg = 1,
    Png = 2,
    Webp = 3,
    Gif = 4,
    Bmp = 5,
}

/// What a file says of itself. Width and height are those of the upright image.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Header {
    pub format: u32,
    pub width: u32,
    pub height: u32,
    pub orientation: u32, // as EXIF counts: 1 is upright
}

/// One step. Which fields count depends on `kind`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Step {
    pub kind: i32, // 0: resize and go on with the result; 1: resize and write
    pub filter: i32,
    pub rule: i32,
    pub width: i32,
    pub height: i32,
    pub layout: i32, // 0: pixels of three bytes; 1: tiles; 2: patches
    pub canvas_width: i32,
    pub canvas_height: i32,
    pub left: i32,
    pub top: i32,
    pub tile_width: i32,
    pub tile_height: i32,
    pub side: i32,
    pub merge: i32,
    pub frames: i32,
    pub element: i32, // bytes of a value
    pub offset: usize,
}

/// Reads the dimensions, and nothing that costs more.
fn header(jpeg: &mut jpeg::Jpeg, file: &[u8]) -> Result<Header, Bad> {
    let (format, (width, height), orientation) = match sniff(file)? {
        Format::Jpeg => {
            let info = jpeg.header(file)?;
            (Format::Jpeg, (info.width as usize, info.height as usize), exif::of_jpeg(file))
        }
        Format::Png => (Format::Png, png::header(file)?, exif::of_png(file)),
        Format::Webp => (Format::Webp, webp::header(file)?, exif::of_webp(file)),
        Format::Gif => (Format::Gif, gif::header(file)?, 1),
        Format::Bmp => (Format::Bmp, bmp::header(file)?, 1),
    };
    if width == 0 || height == 0 {
        return Err(Bad::File("it has no pixels".into()));
    }
    let (w, h) = if (5..=8).contains(&orientation) { (height, width) } else { (width, height) };
    let size = |n: usize| u32::try_from(n).map_err(|_| Bad::Pixels(width, height));
    Ok(Header { format: format as u32, width: size(w)?, height: size(h)?, orientation: orientation as u32 })
}

fn sniff(file: &[u8]) -> Result<Format, Bad> {
    let brand = |names: &[&[u8]]| file.get(4..8) == Some(b"ftyp") && names.iter().any(|&n| file.get(8..12) == Some(n));
    let say = |text: &str| Err(Bad::File(text.into()));
    if file.is_empty() {
        return say("it is empty");
    }
    if file.starts_with(b"\xff\xd8\xff") {
        return Ok(Format::Jpeg);
    }
    if file.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Ok(Format::Png);
    }
    if file.starts_with(b"RIFF") && file.get(8..12) == Some(b"WEBP") {
        return Ok(Format::Webp);
    }
    if file.starts_with(b"GIF87a") || file.starts_with(b"GIF89a") {
        return Ok(Format::Gif);
    }
    if file.starts_with(b"BM") {
        return Ok(Format::Bmp);
    }
    if brand(&[b"avif", b"avis"]) {
        return say("AVIF isn't supported: send JPEG, PNG, WebP, GIF or BMP");
    }
    if brand(&[b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"]) {
        return say("HEIC isn't supported: send JPEG, PNG, WebP, GIF or BMP");
    }
    say("it isn't a JPEG, PNG, WebP, GIF or BMP file")
}

/// What one call needs, kept for the next.
pub struct Worker {
    jpeg: jpeg::Jpeg,
    memory: Vec<u8>, // pixels of a decoder that can't go row by row
    scratch: Scratch,
}

/// What decoding one image may take: some kilobytes of a file can stand for all pixels that are allowed, at eight bytes
/// each in formats that are decoded as a whole.
const MEMORY_BYTES: usize = 976 << 20;

/// Scratch memory that is kept for the next image.
const KEEP_BYTES: usize = 32 << 20;

/// What is asked for besides the steps.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Limit of width times height.
    pub max_pixels: usize,
    /// The colour that stands for transparency becomes white.
    pub key_to_white: bool,
    /// No vector instructions.
    pub narrow: bool,
}

impl Worker {
    pub fn new() -> Result<Worker, Bad> {
        Ok(Worker { jpeg: jpeg::Jpeg::new()?, memory: vec![], scratch: Scratch::default() })
    }

    /// Reads the dimensions.
    pub fn header(&mut self, file: &[u8], max_pixels: usize) -> Result<Header, Bad> {
        let header = header(&mut self.jpeg, file)?;
        let (w, h) = (header.width as usize, header.height as usize);
        if w.checked_mul(h).is_none_or(|n| n > max_pixels) {
            return Err(Bad::Pixels(w, h));
        }
        Ok(header)
    }

    /// Decodes a file and runs the steps; the values that are written come from `tables`.
    pub fn run(
        &mut self,
        file: &[u8],
        options: Options,
        steps: &[Step],
        tables: &[u8],
        out: &mut [u8],
    ) -> Result<Header, Bad> {
        let header = self.header(file, options.max_pixels)?;
        let result = self.decode(file, header, options, steps, tables, out);
        lanes::sent();
        // One huge image must not hold memory for good.
        if self.memory.capacity() > KEEP_BYTES {
            self.memory = vec![];
        }
        if self.scratch.size() > KEEP_BYTES {
            self.scratch = Scratch::default();
        }
        result.map(|()| header)
    }

    fn decode(
        &mut self,
        file: &[u8],
        header: Header,
        options: Options,
        steps: &[Step],
        tables: &[u8],
        out: &mut [u8],
    ) -> Result<(), Bad> {
        let work = Work { options, orientation: header.orientation as u16, steps, tables };
        // An image that is kept as a whole takes its part.
        let kept = if work.streams() { 0 } else { 3 * header.width as usize * header.height as usize };
        let room = MEMORY_BYTES.saturating_sub(kept).max(1); // to libjpeg, 0 is no bound
        let scratch = &mut self.scratch;
        match sniff(file)? {
            Format::Jpeg => work.run(&mut self.jpeg.open(file, options.narrow, room)?, None, scratch, out),
            Format::Png => {
                let mut open = png::open(file, room)?;
                let key = open.key;
                work.run(&mut open, key, scratch, out)
            }
            Format::Webp => work.run(&mut webp::open(file, &mut self.memory, room)?, None, scratch, out),
            Format::Gif => {
                let mut open = gif::open(file)?;
                let key = open.key;
                work.run(&mut open, key, scratch, out)
            }
            Format::Bmp => work.run(&mut bmp::open(file)?, None, scratch, out),
        }
    }
}

struct Work<'a> {
    options: Options,
    orientation: u16,
    steps: &'a [Step],
    tables: &'a [u8],
}

impl Work<'_> {
    fn run(
        &self,
        rows: &mut dyn Rows,
        key: Option<[u8; 3]>,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<(), Bad> {
        match key.filter(|_| self.options.key_to_white) {
            Some(key) => self.turn(&mut KeyToWhite { rows, key }, scratch, out),
            None => self.turn(rows, scratch, out),
        }
    }

    /// Reports whether rows go straight from the decoder to the one step there is.
    fn streams(&self) -> bool {
        self.orientation <= 1 && self.steps.len() == 1 && self.steps[0].kind == 1
    }

    fn turn(&self, rows: &mut dyn Rows, scratch: &mut Scratch, out: &mut [u8]) -> Result<(), Bad> {
        if self.streams() {
            return self.write(rows, &self.steps[0], scratch, out);
        }
        // More than one step looks at the image, or it has to be turned: then it is kept as a whole.
        let mut picture = Picture::upright(rows, self.orientation)?;
        for step in self.steps {
            picture.rewind();
            if step.kind == 1 {
                self.write(&mut picture, step, scratch, out)?;
                continue;
            }
            let target = step.target()?;
            let mut resized = Picture::new(target.width, target.height)?;
            resize::resize(&mut picture, target, &mut resized, scratch, self.options.narrow)?;
            picture = resized;
        }
        Ok(())
    }

    fn write(&self, rows: &mut dyn Rows, step: &Step, scratch: &mut Scratch, out: &mut [u8]) -> Result<(), Bad> {
        let to = step.target()?;
        let out = step.place(out)?;
        let values = step.values(self.tables)?;
        let narrow = self.options.narrow;
        let size = (to.width, to.height);
        match step.layout {
            0 => resize::resize(rows, to, &mut emit::Interleaved::new(to.width, out), scratch, narrow),
            1 => resize::resize(rows, to, &mut emit::Tiles::new(size, step.canvas()?, values, out), scratch, narrow),
            2 => resize::resize(rows, to, &mut emit::Patches::new(to.width, step.cut()?, values, out), scratch, narrow),
            _ => Err(Bad::Internal),
        }
    }
}

/// A number that must be positive, and small enough that products of a few don't overflow.
fn positive(n: i32) -> Result<usize, Bad> {
    usize::try_from(n).ok().filter(|n| (1..1 << 20).contains(n)).ok_or(Bad::Internal)
}

impl Step {
    fn target(&self) -> Result<Target, Bad> {
        Ok(Target {
            width: positive(self.width)?,
            height: positive(self.height)?,
            filter: Filter::from_number(self.filter).ok_or(Bad::Internal)?,
            rule: Rule::from_number(self.rule).ok_or(Bad::Internal)?,
        })
    }

    fn canvas(&self) -> Result<emit::Canvas, Bad> {
        let canvas = emit::Canvas {
            width: positive(self.canvas_width)?,
            height: positive(self.canvas_height)?,
            left: self.left as isize,
            top: self.top as isize,
            tile_width: positive(self.tile_width)?,
            tile_height: positive(self.tile_height)?,
        };
        let whole = canvas.width % canvas.tile_width == 0 && canvas.height % canvas.tile_height == 0;
        whole.then_some(canvas).ok_or(Bad::Internal)
    }

    fn cut(&self) -> Result<emit::Cut, Bad> {
        let cut = emit::Cut { side: positive(self.side)?, merge: positive(self.merge)?, frames: positive(self.frames)? };
        let group = cut.side * cut.merge;
        let whole = positive(self.width)? % group == 0 && positive(self.height)? % group == 0;
        whole.then_some(cut).ok_or(Bad::Internal)
    }

    fn values<'a>(&self, tables: &'a [u8]) -> Result<emit::Values<'a>, Bad> {
        let bytes = self.element.try_into().map_err(|_| Bad::Internal)?;
        let fits = self.layout == 0 || matches!(bytes, 1 | 2 | 4) && tables.len() == 768 * bytes;
        fits.then_some(emit::Values { table: tables, bytes }).ok_or(Bad::Internal)
    }

    /// The bytes that the step writes.
    fn place<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], Bad> {
        let (w, h) = (positive(self.width)?, positive(self.height)?);
        let values = match self.layout {
            0 => Some(3 * w * h),
            1 => positive(self.canvas_width)?.checked_mul(3 * positive(self.canvas_height)?),
            _ => (3 * w * h).checked_mul(positive(self.frames)?),
        };
        let element = if self.layout == 0 { 1 } else { positive(self.element)? };
        let bytes = values.and_then(|v| v.checked_mul(element)).ok_or(Bad::Internal)?;
        out.get_mut(self.offset..).and_then(|o| o.get_mut(..bytes)).ok_or(Bad::Internal)
    }
}

/// Makes a worker; null: there isn't enough memory.
#[no_mangle]
pub extern "C" fn portico_image_worker() -> *mut Worker {
    let made = catch_unwind(|| Worker::new().ok()).ok().flatten();
    made.map_or(std::ptr::null_mut(), |w| Box::into_raw(Box::new(w)))
}

/// Frees a worker.
#[no_mangle]
pub unsafe extern "C" fn portico_image_worker_free(worker: *mut Worker) {
    if !worker.is_null() {
        drop(Box::from_raw(worker));
    }
}

/// Runs `f` on a worker. 0, or a code with its text in `error`; 5 is a panic, after which the worker is made anew.
unsafe fn call(
    worker: *mut Worker,
    out: *mut Header,
    error: *mut Array<u8>,
    f: impl FnOnce(&mut Worker) -> Result<Header, Bad>,
) -> i32 {
    let Some(worker) = worker.as_mut() else { return Bad::Internal.code() };
    let (code, text) = match catch_unwind(AssertUnwindSafe(|| f(worker))) {
        Ok(Ok(header)) => {
            out.write(header);
            return 0;
        }
        Ok(Err(bad)) => (bad.code(), bad.text()),
        Err(_) => {
            if let Ok(Ok(new)) = catch_unwind(Worker::new) {
                *worker = new;
            }
            (5, "panic".to_string())
        }
    };
    error.write(Array::give(text.into_bytes()));
    code
}

/// Reads a file's dimensions.
#[no_mangle]
pub unsafe extern "C" fn portico_image_header(
    worker: *mut Worker,
    file: *const u8,
    len: usize,
    max_pixels: usize,
    out: *mut Header,
    error: *mut Array<u8>,
) -> i32 {
    call(worker, out, error, |w| w.header(borrow(file, len), max_pixels))
}

/// Decodes a file and runs the steps.
#[no_mangle]
pub unsafe extern "C" fn portico_image_run(
    worker: *mut Worker,
    file: *const u8,
    len: usize,
    max_pixels: usize,
    flags: u32, // 1: key_to_white; 2: narrow
    steps: *const Step,
    step_count: usize,
    tables: *const u8,
    tables_len: usize,
    dst: *mut u8,
    dst_len: usize,
    out: *mut Header,
    error: *mut Array<u8>,
) -> i32 {
    call(worker, out, error, |w| {
        let options = Options { max_pixels, key_to_white: flags & 1 != 0, narrow: flags & 2 != 0 };
        let dst = if dst.is_null() { &mut [][..] } else { std::slice::from_raw_parts_mut(dst, dst_len) };
        w.run(borrow(file, len), options, borrow(steps, step_count), borrow(tables, tables_len), dst)
    })
}
