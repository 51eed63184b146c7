#!/bin/sh
# Builds the program in crate/ and prints its path; without cargo it prints nothing. The first time takes some minutes.
#
# The crate decodes JPEG with a libturbojpeg that it opens at run time, as its gateway's container has it. Where the system
# has none, the one of Debian's or Ubuntu's package is put beside the program, if apt-get can fetch that.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
target=$(cd "$here/../../.." && pwd)/.build/images-crate
release=$target/release

command -v cargo >/dev/null || { echo "images: without cargo there is no third side" >&2; exit 0; }
echo "images: building the crate llm-multimodal 1.14.0" >&2
cargo build --quiet --release --locked --manifest-path "$here/crate/Cargo.toml" --target-dir "$target" >&2

if [ ! -e "$release/libturbojpeg.so.0" ] && ! /sbin/ldconfig -p 2>/dev/null | grep -q 'libturbojpeg\.so\.0' &&
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    packages=$target/packages
    rm -rf "$packages"
    mkdir -p "$packages"
    (cd "$packages" && { apt-get download libturbojpeg0 || apt-get download libturbojpeg; } >/dev/null 2>&1) ||
        echo "images: no libturbojpeg for the crate: apt-get update might help" >&2
    for package in "$packages"/*.deb; do
        [ -e "$package" ] || continue
        dpkg-deb -x "$package" "$packages"
        find "$packages" -name 'libturbojpeg.so.0' -exec cp -L {} "$release/" \;
    done
fi
echo "$release/images-crate"
