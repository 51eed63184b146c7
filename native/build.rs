//! Compiles the one C file of the crate: libjpeg reports errors by a jump, which must not cross frames of Rust.
use std::env;

fn main() {
    let source = "src/image/jpeg.c";
    println!("cargo:rerun-if-changed={source}");
    let headers = env::var_os("DEP_JPEG_INCLUDE").expect("mozjpeg-sys tells where its headers are");
    cc::Build::new().includes(env::split_paths(&headers)).opt_level(3).file(source).compile("portico_jpeg");
}
