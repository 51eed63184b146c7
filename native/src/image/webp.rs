//! WebP through libwebp. Of an animation the first frame is taken.
use super::rows::Rows;
use super::{lanes, resize::grow, Bad};
use libwebp_sys as webp;
use std::mem::MaybeUninit;

fn features(file: &[u8]) -> Result<webp::WebPBitstreamFeatures, Bad> {
    let mut features = MaybeUninit::<webp::WebPBitstreamFeatures>::zeroed();
    let status = unsafe { webp::WebPGetFeatures(file.as_ptr(), file.len(), features.as_mut_ptr()) };
    if status != webp::VP8StatusCode::VP8_STATUS_OK {
        return Err(broken());
    }
    Ok(unsafe { features.assume_init() })
}

fn broken() -> Bad {
    Bad::File("it is truncated or broken".into())
}

/// Width and height.
pub fn header(file: &[u8]) -> Result<(usize, usize), Bad> {
    let f = features(file)?;
    Ok((f.width as usize, f.height as usize))
}

/// A decoded image.
pub struct Open<'a> {
    width: usize,
    height: usize,
    pixels: &'a [u8],
    next: usize,
}

/// Decodes into `memory`, which is kept between images. `room` is how much memory may be taken.
pub fn open<'a>(file: &[u8], memory: &'a mut Vec<u8>, room: usize) -> Result<Open<'a>, Bad> {
    let f = features(file)?;
    let (width, height) = (f.width as usize, f.height as usize);
    let bytes = 3 * width * height;
    // libwebp decodes a lossless one, which an animation may hold, as a whole before it writes rows.
    let whole = if f.format == 1 { 0 } else { 4 * width * height };
    if bytes + whole > room {
        return Err(Bad::File("it takes too much memory".into()));
    }
    grow(memory, bytes)?;
    if f.has_animation != 0 {
        memory[..bytes].fill(0); // where the frame doesn't reach
        first_frame(file, &mut memory[..bytes], width, height)?;
    } else {
        decode(file, &mut memory[..bytes], 3 * width)?;
    }
    Ok(Open { width, height, pixels: &memory[..bytes], next: 0 })
}

fn decode(file: &[u8], out: &mut [u8], pitch: usize) -> Result<(), Bad> {
    let pitch = i32::try_from(pitch).map_err(|_| Bad::Memory)?;
    let p = unsafe { webp::WebPDecodeRGBInto(file.as_ptr(), file.len(), out.as_mut_ptr(), out.len(), pitch) };
    if p.is_null() {
        return Err(broken());
    }
    Ok(())
}

/// Frees what libwebp made, on every way out.
struct Demux(*mut webp::WebPDemuxer);

impl Drop for Demux {
    fn drop(&mut self) {
        unsafe { webp::WebPDemuxDelete(self.0) }
    }
}

struct Frame(webp::WebPIterator);

impl Drop for Frame {
    fn drop(&mut self) {
        unsafe { webp::WebPDemuxReleaseIterator(&mut self.0) }
    }
}

fn first_frame(file: &[u8], canvas: &mut [u8], width: usize, height: usize) -> Result<(), Bad> {
    let data = webp::WebPData { bytes: file.as_ptr(), size: file.len() };
    let demux = Demux(unsafe { webp::WebPDemuxInternal(&data, 0, std::ptr::null_mut(), webp::WEBP_DEMUX_ABI_VERSION as _) });
    if demux.0.is_null() {
        return Err(broken());
    }
    let mut frame = Frame(unsafe { MaybeUninit::zeroed().assume_init() });
    if unsafe { webp::WebPDemuxGetFrame(demux.0, 1, &mut frame.0) } == 0 {
        return Err(broken());
    }
    let f = &frame.0;
    let (x, y, w, h) = (f.x_offset as usize, f.y_offset as usize, f.width as usize, f.height as usize);
    if f.x_offset < 0 || f.y_offset < 0 || x + w > width || y + h > height {
        return Err(broken());
    }
    let part = unsafe { std::slice::from_raw_parts(f.fragment.bytes, f.fragment.size) };
    if header(part)? != (w, h) {
        return Err(broken());
    }
    decode(part, &mut canvas[3 * (y * width + x)..], 3 * width)
}

impl Rows for Open<'_> {
    fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    fn next(&mut self, [r, g, b]: [&mut [u8]; 3]) -> Result<(), Bad> {
        let bytes = 3 * self.width;
        lanes::split3(&self.pixels[self.next * bytes..][..bytes], r, g, b);
        self.next += 1;
        Ok(())
    }
}
