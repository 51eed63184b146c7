//! GIF: the first frame, on the canvas it belongs to, as PIL shows it.
use super::rows::Rows;
use super::Bad;
use gif::{ColorOutput, DecodeOptions, Decoder, MemoryLimit};

fn bad(e: gif::DecodingError) -> Bad {
    Bad::File(e.to_string())
}

fn decoder(file: &[u8]) -> Result<Decoder<&[u8]>, Bad> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // Pixels are counted before they are decoded.
    options.set_memory_limit(MemoryLimit::Unlimited);
    options.read_info(file).map_err(bad)
}

/// The screen, and the first frame's place on it.
struct Place {
    size: (usize, usize),
    left: usize,
    top: usize,
    width: usize,
    height: usize,
}

fn first(decoder: &mut Decoder<&[u8]>) -> Result<(Place, Option<u8>), Bad> {
    let screen = (decoder.width() as usize, decoder.height() as usize);
    let frame = decoder.next_frame_info().map_err(bad)?.ok_or_else(|| Bad::File("it has no frame".into()))?;
    let (left, top) = (frame.left as usize, frame.top as usize);
    let (width, height) = (frame.width as usize, frame.height as usize);
    // A frame that reaches beyond the screen makes it larger.
    let size = (screen.0.max(left + width), screen.1.max(top + height));
    Ok((Place { size, left, top, width, height }, frame.transparent))
}

/// Width and height.
pub fn header(file: &[u8]) -> Result<(usize, usize), Bad> {
    first(&mut decoder(file)?).map(|(place, _)| place.size)
}

/// A decoded image.
pub struct Open {
    place: Place,
    indices: Vec<u8>,
    colours: [[u8; 3]; 256],
    background: u8,
    next: usize,
    /// The colour that stands for transparency.
    pub key: Option<[u8; 3]>,
}

pub fn open(file: &[u8]) -> Result<Open, Bad> {
    let mut decoder = decoder(file)?;
    let (place, transparent) = first(&mut decoder)?;
    let mut indices = Vec::new();
    indices.try_reserve_exact(place.width * place.height).map_err(|_| Bad::Memory)?;
    indices.resize(place.width * place.height, 0);
    // Rows come in the order of the image, also of interlaced ones.
    decoder.read_into_buffer(&mut indices).map_err(bad)?;
    let palette = decoder.palette().ok();
    let mut colours = [[0; 3]; 256];
    match palette {
        Some(palette) => palette.chunks_exact(3).zip(&mut colours).for_each(|(p, c)| *c = [p[0], p[1], p[2]]),
        None => colours.iter_mut().enumerate().for_each(|(i, c)| *c = [i as u8; 3]),
    }
    let key = transparent.map(|t| colours[t as usize]);
    Ok(Open { place, indices, colours, background: transparent.unwrap_or(0), next: 0, key })
}

impl Rows for Open {
    fn size(&self) -> (usize, usize) {
        self.place.size
    }

    fn next(&mut self, [r, g, b]: [&mut [u8]; 3]) -> Result<(), Bad> {
        let p = &self.place;
        let background = self.colours[self.background as usize];
        for x in 0..p.size.0 {
            [r[x], g[x], b[x]] = background;
        }
        if (p.top..p.top + p.height).contains(&self.next) {
            let row = &self.indices[(self.next - p.top) * p.width..][..p.width];
            for (x, i) in row.iter().enumerate() {
                let x = x + p.left;
                [r[x], g[x], b[x]] = self.colours[*i as usize];
            }
        }
        self.next += 1;
        Ok(())
    }
}
