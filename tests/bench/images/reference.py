"""The reference of the image benchmark: what vLLM does with a Qwen2-VL image, one thread.

    python reference.py make DIR     writes the images of the benchmark
    python reference.py serve        for each file name on standard input: CPU milliseconds, a SHA-256 of the tensor, its shape

What is timed is what vLLM 0.31 does between a file's bytes and a tensor: Pillow decodes, transformers' processor on
torchvision resizes and cuts into patches (as bytes: vLLM normalises on the device), and the pixels are hashed with blake3.
"""
import hashlib
import io
import os
import pathlib
import sys
import time

import numpy as np
from PIL import Image, ImageDraw


def scene(rng, width, height):
    """Smooth colours with some noise, edges and lines: about as hard to encode as a photograph."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    base = np.stack([127 + 120 * np.sin(x / 17 + y / 53), x / width * 255, 127 + 120 * np.cos((x - y) / 29)], -1)
    base += rng.normal(0, 6, base.shape)
    image = Image.fromarray(np.clip(base, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(40):
        a = rng.integers(0, [width, height])
        b = a + rng.integers(8, min(width, height) // 3, 2)
        draw.ellipse([int(v) for v in (*a, *b)], fill=tuple(int(v) for v in rng.integers(0, 255, 3)))
    return image


def make(folder):
    rng = np.random.default_rng(11)
    scene(rng, 1280, 960).save(folder / "1280x960.jpg", quality=85)
    scene(rng, 3840, 2160).save(folder / "3840x2160.jpg", quality=85)
    scene(rng, 1280, 960).save(folder / "1280x960.png")
    scene(rng, 640, 480).save(folder / "640x480.webp", quality=80)


def serve():
    import torch
    from blake3 import blake3
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    torch.set_num_threads(1)
    processor = Qwen2VLImageProcessor(min_pixels=3136, max_pixels=12845056)
    for line in sys.stdin:
        data = pathlib.Path(line.strip()).read_bytes()
        begin = time.process_time()
        image = Image.open(io.BytesIO(data)).convert("RGB")
        blake3(np.asarray(image)).hexdigest()
        out = processor(images=[image], do_rescale=False, do_normalize=False, return_tensors="pt")["pixel_values"]
        took = (time.process_time() - begin) * 1000
        digest = hashlib.sha256(out.to(torch.uint8).numpy().tobytes()).hexdigest()
        print(f"{took:.4f} {digest} {'x'.join(map(str, out.shape))}", flush=True)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    make(pathlib.Path(sys.argv[2])) if sys.argv[1] == "make" else serve()
