//! Turns image files into Qwen2-VL tensors with the crate `llm-multimodal`, as its gateway does, on one thread.
//!
//!     images-crate about CONFIG    which libraries it found
//!     images-crate serve CONFIG    for each file name on standard input: CPU milliseconds, a SHA-256 of the tensor, its shape
//!
//! CONFIG is the model's preprocessor_config.json. The gateway decodes JPEG and WebP with libraries that it opens at run
//! time, and with decoders in Rust where they are missing.

use std::io::{BufRead, Write};

use image::DynamicImage;
use llm_multimodal::encoder_inputs::EncoderInput;
use llm_multimodal::vision::processors::Qwen2VLProcessor;
use llm_multimodal::{configure_parallelism, hasher, jpeg_turbo, webp_native};
use llm_multimodal::{Parallelism, PreProcessorConfig, VisionPreProcessor};
use sha2::{Digest, Sha256};

type Failure = Box<dyn std::error::Error>;

/// The CPU time of this process in milliseconds.
fn cpu() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to a value that lives here.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}

fn decode(data: &[u8]) -> Result<DynamicImage, Failure> {
    if let Some(image) = jpeg_turbo::decode_jpeg_rgb(data).or_else(|| webp_native::decode_webp(data)) {
        return Ok(image);
    }
    Ok(image::load_from_memory(data)?)
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    let [_, command, config] = args.as_slice() else {
        return Err("usage: images-crate about|serve CONFIG".into());
    };
    // Every task on the calling thread: no cheaper way is there where CPU time counts.
    configure_parallelism(Parallelism::Inline).map_err(|other| format!("parallelism is {other:?}"))?;
    if command == "about" {
        let found = |yes| if yes { "found" } else { "NOT FOUND" };
        let (jpeg, webp) = (found(jpeg_turbo::turbojpeg_available()), found(webp_native::webp_available()));
        println!("llm-multimodal 1.14.0, libturbojpeg {jpeg}, libwebp {webp}");
        return Ok(());
    }
    let config = PreProcessorConfig::from_json(&std::fs::read_to_string(config)?)?;
    let processor = Qwen2VLProcessor::new();
    for name in std::io::stdin().lock().lines() {
        let data = std::fs::read(name?)?;
        let begin = cpu();
        std::hint::black_box(hasher::hash_image(&data));
        let made = processor.preprocess(&[decode(&data)?], &config)?;
        let took = cpu() - begin;
        let EncoderInput::U8 { patches, .. } = &made.encoder_input else {
            return Err("the tensor isn't of bytes".into());
        };
        let bytes = patches.as_slice().ok_or("the tensor isn't contiguous")?;
        let shape: Vec<String> = patches.shape().iter().map(usize::to_string).collect();
        println!("{took:.4} {:x} {}", Sha256::digest(bytes), shape.join("x"));
        std::io::stdout().flush()?;
    }
    Ok(())
}
