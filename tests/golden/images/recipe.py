"""Makes manifest.json anew from files/: what PIL and transformers' processors without torch make of each.

    pip install transformers==5.24.0 pillow==13.0.0 pillow-heif numpy==2.4.6
    python recipe.py
"""
import hashlib
import importlib
import json
import pathlib

import numpy as np
import PIL
import pillow_heif
import transformers
from transformers.image_utils import load_image

pillow_heif.register_heif_opener()
here = pathlib.Path(__file__).parent
half = [0.5] * 3
edge = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
pinpoints = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def square(n):
    return {"size": {"height": n, "width": n}}


PROCESSORS = {
    "qwen2_vl": ("qwen2_vl", "Qwen2VL", {}),
    "qwen2_vl_small": ("qwen2_vl", "Qwen2VL", {"min_pixels": 4 * 28 * 28, "max_pixels": 64 * 28 * 28}),
    "qwen3_vl_like_p16": ("qwen2_vl", "Qwen2VL", {"patch_size": 16, "image_mean": half, "image_std": half,
                                                  "size": {"shortest_edge": 65536, "longest_edge": 16777216}}),
    "llava15_clip336": ("clip", "CLIP", edge),
    "llava_next": ("llava_next", "LlavaNext", {**edge, "image_grid_pinpoints": pinpoints}),
    "siglip384": ("siglip", "Siglip", square(384)),
    "gemma3_896": ("gemma3", "Gemma3", {**square(896), "image_mean": half, "image_std": half}),
    "pixtral": ("pixtral", "Pixtral", {}),
    "mllama": ("mllama", "Mllama", {**square(448), "max_image_tiles": 4}),
    "idefics3": ("idefics3", "Idefics3", {}),
}
EVERY = {"qwen2_vl", "qwen2_vl_small", "llava15_clip336"}
SOME = {"rgb.png", "exif6_420.jpg", "palette_trns.png", "tall.png", "tiny.png", "wide.jpg"}


def told(x):
    x = np.ascontiguousarray(x)
    if x.size > 64:
        return {"dtype": str(x.dtype), "shape": list(x.shape), "sha256": hashlib.sha256(x.tobytes()).hexdigest()}
    return {"dtype": str(x.dtype), "shape": list(x.shape), "value": x.tolist()}


def processor(module, name, kwargs):
    path = f"transformers.models.{module}.image_processing_pil_{module}"
    return getattr(importlib.import_module(path), f"{name}ImageProcessorPil")(**kwargs)


made = {name: processor(*args) for name, args in PROCESSORS.items()}
out = {
    "reference": f"transformers {transformers.__version__} PIL backend, Pillow {PIL.__version__}, numpy {np.__version__}",
    "load": "transformers.image_utils.load_image: exif_transpose, convert to RGB",
    "images": {},
    "processors": {k: json.loads(json.dumps(p.to_dict(), default=str)) for k, p in made.items()},
    "cases": [],
}
for path in sorted((here / "files").iterdir()):
    image = load_image(str(path))
    out["images"][path.name] = told(np.array(image))
    for name, p in made.items():
        if name in EVERY or path.name in SOME:
            tensors = p(images=[image], return_tensors="np")
            case = {k: told(np.asarray(v)) for k, v in tensors.items()}
            out["cases"].append({"image": path.name, "processor": name, "out": case})
(here / "manifest.json").write_text(json.dumps(out, indent=1) + "\n")
