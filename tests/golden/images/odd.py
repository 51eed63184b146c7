"""Makes odd.tar.gz and odd.json anew: small files of the rarer kinds, and what Pillow makes of them; and two large ones.

    pip install pillow==13.0.0 numpy==2.4.6
    python odd.py
"""
import gzip
import hashlib
import io
import json
import pathlib
import struct
import tarfile
import zlib

import numpy as np
from PIL import Image, ImageOps

rng = np.random.default_rng(9)
files = {}


def noise(n):
    return bytes(rng.integers(0, 256, n, dtype=np.uint8))


def size(limit=40):
    return (int(v) for v in rng.integers(1, limit, 2))


def png(width, height, depth, color, palette=None, trns=None, interlaced=0, after=b""):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    def rows(w, h):
        count = (w * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color] * depth + 7) // 8
        return b"".join(b"\0" + noise(count) for _ in range(h))

    raw = b"" if interlaced else rows(width, height)
    if interlaced:
        for x, y, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]:
            w, h = (width - x + dx - 1) // dx, (height - y + dy - 1) // dy
            if w > 0 and h > 0:
                raw += rows(w, h)
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced))
    out += chunk(b"PLTE", palette) if palette else b""
    out += chunk(b"tRNS", trns) if trns is not None else b""
    return out + chunk(b"IDAT", zlib.compress(raw)) + after + chunk(b"IEND", b"")


def bomb(name, side, interlaced):
    """A PNG of black pixels, packed twice."""
    global noise
    keep, noise = noise, bytes  # so many zeros
    with gzip.GzipFile(pathlib.Path(__file__).parent / name, "wb", mtime=0) as out:
        out.write(png(side, side, 8, 2, interlaced=interlaced))
    noise = keep


def pngs():
    for color, depths in {0: [1, 2, 4, 8, 16], 2: [8, 16], 3: [1, 2, 4, 8], 4: [8, 16], 6: [8, 16]}.items():
        for depth in depths:
            for interlaced in (0, 1):
                palette = noise(3 << depth) if color == 3 else None
                files[f"png-{color}-{depth}-{interlaced}.png"] = png(*size(), depth, color, palette, None, interlaced)
            trns = {0: struct.pack(">H", 1), 2: struct.pack(">HHH", 1, 2, 3), 3: noise(1 << depth)}.get(color)
            if trns:
                files[f"png-{color}-{depth}-trns.png"] = png(*size(), depth, color, palette, trns)


def bmp(width, height, bits, compression=0, data=None, palette=b"", masks=b"", header=40, colors=0):
    if data is None:
        data = noise((width * bits + 31) // 32 * 4 * abs(height))
    head = struct.pack("<IiiHHIIiiII", header, width, height, 1, bits, compression, len(data), 0, 0, colors, 0) + masks
    head += b"\0" * (header - len(head))
    offset = 14 + len(head) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(data), 0, 0, offset) + head + palette + data


def bmps():
    for height in (7, -7):
        way = "up" if height > 0 else "down"
        for bits in (1, 4, 8):
            files[f"bmp-{bits}-{way}.bmp"] = bmp(13, height, bits, palette=noise(4 << bits))
        for bits in (16, 24, 32):
            files[f"bmp-{bits}-{way}.bmp"] = bmp(13, height, bits)
        for name, bits, masks in [("565", 16, (0xF800, 0x7E0, 0x1F)), ("555", 16, (0x7C00, 0x3E0, 0x1F)),
                                  ("888", 32, (0xFF0000, 0xFF00, 0xFF)), ("rgbx", 32, (0xFF000000, 0xFF0000, 0xFF00))]:
            files[f"bmp-{name}-{way}.bmp"] = bmp(13, height, bits, 3, masks=struct.pack("<III", *masks))
    files["bmp-v5.bmp"] = bmp(13, 7, 32, 3, masks=struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000), header=124)
    files["bmp-few.bmp"] = bmp(5, 2, 8, palette=noise(40), colors=10)
    runs = bytes([5, 7, 0, 0, 2, 1, 0, 3, 9, 8, 7, 0, 0, 0, 3, 4, 2, 5, 0, 1])
    files["bmp-rle8.bmp"] = bmp(5, 3, 8, 1, data=runs, palette=noise(1024))
    pixels = noise(12 * 4)
    head = struct.pack("<IHHHH", 12, 9, 4, 1, 8)
    files["bmp-os2.bmp"] = b"BM" + struct.pack("<IHHI", 26 + 768 + 48, 0, 0, 26 + 768) + head + noise(768) + pixels


def gif(screen, place, own, transparent, interlaced):
    x, y, w, h = place
    image = Image.fromarray(rng.integers(0, 16, (h, w), dtype=np.uint8), "P")
    image.putpalette(noise(48))
    buffer = io.BytesIO()
    image.save(buffer, "GIF", interlace=interlaced, optimize=False)
    whole = buffer.getvalue()
    table = 3 * (2 << (whole[10] & 7))
    frame = whole[13 + table:]
    frame = frame[frame.index(b","):]
    out = whole[:6] + struct.pack("<HHBBB", *screen, whole[10], 2, 0) + whole[13:13 + table]
    if transparent is not None:
        out += b"\x21\xf9\x04\x01\0\0" + bytes([transparent, 0])
    return out + b"," + struct.pack("<HHHHB", x, y, w, h, frame[9] & 0x40 | (0x83 if own else 0)) + (
        noise(48) if own else b"") + frame[10:]


def gifs():
    for i, (screen, place) in enumerate([((20, 15), (3, 4, 10, 8)), ((20, 15), (0, 0, 20, 15)), ((10, 10), (5, 5, 10, 10))]):
        for own in (0, 1):
            for transparent in (None, 3):
                for interlaced in (0, 1):
                    name = f"gif-{i}-{own}-{transparent is not None:d}-{interlaced}.gif"
                    files[name] = gif(screen, place, own, transparent, interlaced)


def saved(image, kind, **settings):
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def orientations():
    for o in range(1, 9):
        exif = Image.Exif()
        exif[0x112] = o
        pixels = Image.fromarray(np.frombuffer(noise(3 * 70 * 90), np.uint8).reshape(90, 70, 3))
        files[f"turned-{o}.jpg"] = saved(pixels, "JPEG", quality=90, exif=exif)
        files[f"turned-{o}.png"] = saved(pixels.resize((9, 130)), "PNG", exif=exif)
        files[f"turned-{o}.webp"] = saved(pixels.resize((30, 20)), "WEBP", lossless=True, exif=exif)


def jpegs():
    for sampling in (0, 1, 2):
        for i in range(5):
            w, h = (i + 1, 6 - i) if i < 3 else size(70)
            pixels = Image.fromarray(np.frombuffer(noise(3 * w * h), np.uint8).reshape(h, w, 3))
            files[f"jpeg-{sampling}-{i}.jpg"] = saved(
                pixels, "JPEG", quality=int(rng.integers(5, 100)), subsampling=sampling, progressive=i % 2 == 1,
                restart_marker_blocks=3 if i == 4 else 0)


def other_bombs(side):
    """The same as other formats."""
    Image.MAX_IMAGE_PIXELS = None
    for name, mode, options in [("bomb.jpg.gz", "JPEG", {"quality": 75, "progressive": True}),
                                ("bomb.webp.gz", "WEBP", {"lossless": True, "method": 0, "quality": 0}),
                                ("bomb-lossy.webp.gz", "WEBP", {"method": 0, "quality": 0})]:
        plain = io.BytesIO()
        Image.new("RGB", (side, side)).save(plain, mode, **options)
        (pathlib.Path(__file__).parent / name).write_bytes(gzip.compress(plain.getvalue(), 9, mtime=0))


other_bombs(12000)
bomb("bomb.png.gz", 12000, 0)
bomb("bomb-interlaced.png.gz", 12000, 1)
for group in (pngs, bmps, gifs, orientations, jpegs):
    group()
here, out = pathlib.Path(__file__).parent, {}
with gzip.GzipFile(here / "odd.tar.gz", "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
    for name, data in sorted(files.items()):
        pixels = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
        out[name] = {"shape": pixels.shape, "sha256": hashlib.sha256(pixels.tobytes()).hexdigest()}
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
(here / "odd.json").write_text(json.dumps(out, indent=0) + "\n")
