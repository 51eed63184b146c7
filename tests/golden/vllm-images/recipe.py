"""Makes the folders llava_next, siglip, pixtral, mistral3, idefics3 and smolvlm: what vLLM's own processors make of images;
and many.json.gz of qwen2vl and llava15: prompts with one to eight images.

    python recipe.py OUT [FAMILY...]

Needs vLLM 0.31.0 for the CPU with Dynamo's package, as tests/e2e/vllm/setup.sh installs them. The models have configs and a
vocabulary of single bytes, and no weights: processors need none.
"""
import gzip, hashlib, json, os, pathlib, struct, sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
here = pathlib.Path(__file__).resolve().parent
images = pathlib.Path(os.environ.get("IMAGES", here.parent / "images" / "files"))

CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711], "resample": 3}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
ON = {"do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "rescale_factor": 1 / 255}
TEXT = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32768, "vocab_size": 512, "bos_token_id": 1,
    "eos_token_id": 2,
}


def tower(kind, size, patch):
    return {"model_type": kind, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 3,
            "image_size": size, "patch_size": patch}


def llava_like(kind, architecture, dtype, vision, **more):
    return {"architectures": [architecture], "model_type": kind, "torch_dtype": dtype, "text_config": TEXT, "vision_config": vision,
            "vision_feature_layer": -2, "image_token_index": 300, "projector_hidden_act": "gelu"} | more


PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
GRID = [f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)]
CROP = {"crop_size": {"height": 336, "width": 336}, "size": {"shortest_edge": 336}, "do_center_crop": True}

# Per family: special tokens, of which the first has id 300, and the three configs.
FAMILIES = {
    "llava_next": (
        ["<image>"],
        llava_like("llava_next", "LlavaNextForConditionalGeneration", "float16", tower("clip_vision_model", 336, 14),
                   vision_feature_select_strategy="default", image_grid_pinpoints=PINPOINTS),
        ON | CLIP | CROP | {"image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": PINPOINTS, "do_pad": True},
        {"processor_class": "LlavaNextProcessor", "image_token": "<image>", "patch_size": 14, "num_additional_image_tokens": 1,
         "vision_feature_select_strategy": "default"},
    ),
    "siglip": (
        ["<image>"],
        llava_like("llava", "LlavaForConditionalGeneration", "bfloat16", tower("siglip_vision_model", 384, 14),
                   vision_feature_select_strategy="full", image_seq_length=729),
        ON | HALF | {"image_processor_type": "SiglipImageProcessor", "size": {"height": 384, "width": 384}, "resample": 3},
        {"processor_class": "LlavaProcessor", "image_token": "<image>", "patch_size": 14, "num_additional_image_tokens": 0,
         "vision_feature_select_strategy": "full"},
    ),
    "pixtral": (
        ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
        llava_like("llava", "LlavaForConditionalGeneration", "bfloat16",
                   tower("pixtral", 1024, 16) | {"head_dim": 32, "rope_theta": 10000.0, "num_channels": 3},
                   vision_feature_select_strategy="full", image_seq_length=1, vision_feature_layer=-1),
        ON | CLIP | {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 1024},
                     "patch_size": {"height": 16, "width": 16}},
        {"processor_class": "PixtralProcessor", "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
         "patch_size": 16, "spatial_merge_size": 1},
    ),
    "mistral3": (
        ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
        llava_like("mistral3", "Mistral3ForConditionalGeneration", "bfloat16",
                   tower("pixtral", 1540, 14) | {"head_dim": 32, "rope_theta": 10000.0, "num_channels": 3},
                   spatial_merge_size=2, vision_feature_layer=-1, multimodal_projector_bias=False)
        | {"text_config": TEXT | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "head_dim": 64}},
        ON | CLIP | {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 1540},
                     "patch_size": {"height": 14, "width": 14}},
        {"processor_class": "PixtralProcessor", "image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
         "patch_size": 14, "spatial_merge_size": 2},
    ),
    "idefics3": (
        ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"] + GRID,
        {"architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3", "torch_dtype": "bfloat16", "image_token_id": 300,
         "scale_factor": 2, "text_config": TEXT, "vision_config": tower("idefics3_vision", 364, 14)},
        ON | HALF | {"image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364},
                     "do_image_splitting": True, "do_pad": True, "resample": 1},
        {"processor_class": "Idefics3Processor", "image_seq_len": 169},
    ),
    "smolvlm": (
        ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"] + GRID,
        {"architectures": ["SmolVLMForConditionalGeneration"], "model_type": "smolvlm", "torch_dtype": "bfloat16", "image_token_id": 300,
         "scale_factor": 4, "text_config": TEXT, "vision_config": tower("smolvlm_vision", 512, 16)},
        ON | HALF | {"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512},
                     "do_image_splitting": True, "do_pad": True, "resample": 1},
        {"processor_class": "SmolVLMProcessor", "image_seq_len": 64},
    ),
}
CASES = {"one": ["rgb.png"], "two": ["rgba.png", "gray.jpg"], "long": ["tall.png", "wide.jpg", "tiny.png"]}
SIZES = [(320, 240), (1, 1), (20, 12), (40, 1500), (1500, 40), (336, 336), (337, 336), (672, 672), (1008, 336), (1000, 700), (1280, 960),
         (960, 1280), (2000, 1500), (3000, 600), (600, 3000), (364, 364), (365, 364), (512, 512), (1456, 1456), (1455, 900), (1024, 1024),
         (1025, 17), (1540, 1540), (1541, 333), (4000, 3000), (16, 16), (17, 33), (729, 384), (99, 1001)]


def vocabulary(specials, folder):
    """A byte each, and two line feeds in one: what Llama's vocabularies have, too."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {c: i + 3 for i, c in enumerate(letters)} | {"\u010a\u010a": 259}
    vocab |= {f"<unused{i}>": i for i in range(260, 300)}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[("\u010a", "\u010a")]))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in ["<unk>", "<s>", "</s>"] + specials])
    t.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}))
    return t


def runs(tokens):
    out = []
    for t in tokens:
        if out and out[-1][0] == t:
            out[-1][1] += 1
        else:
            out.append([t, 1])
    return out


def frames(blob):
    (count,), at, out = struct.unpack_from("<I", blob), 4, []
    for _ in range(count):
        (n,) = struct.unpack_from("<Q", blob, at)
        out.append(blob[at + 8: at + 8 + n])
        at += 8 + n
    return out


def process(processor, prompt, pictures):
    from vllm.multimodal.processing import ProcessorInputs, TimingContext
    items = processor.info.parse_mm_data({"image": pictures})
    out = processor.apply(ProcessorInputs(prompt, items), TimingContext())
    return out["prompt_token_ids"], out["mm_placeholders"]["image"], out["mm_kwargs"]["image"]


def place(p):
    mask = p.is_embed
    return [p.offset, p.length] if mask is None else {"offset": p.offset, "length": p.length, "is_embed": runs(mask.tolist())}


def make(name, out):
    import PIL, torch, transformers, vllm
    from PIL import Image
    from dynamo.common.multimodal.mm_kwargs_transfer import encode_mm_kwargs_item
    from vllm.config import ModelConfig
    from vllm.multimodal import MULTIMODAL_REGISTRY
    specials, config, pre, proc = FAMILIES[name]
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in (("config", config), ("preprocessor_config", pre), ("processor_config", proc)):
        (folder / f"{file}.json").write_text(json.dumps(data, indent=1) + "\n")
    tokenizer = vocabulary(specials, folder)
    processor = MULTIMODAL_REGISTRY.create_processor(ModelConfig(str(folder), tokenizer=str(folder), max_model_len=32768))
    result = {"versions": {"vllm": vllm.__version__, "torch": torch.__version__, "transformers": transformers.__version__,
                           "pillow": PIL.__version__, "image_processor": type(processor.info.get_hf_processor().image_processor).__name__},
              "vocabulary": {t: tokenizer.token_to_id(t) for t in specials} | {"\n": tokenizer.token_to_id("\u010a"), "\n\n": 259},
              "cases": {}, "sizes": []}
    for case, files in CASES.items():
        prompt = [1]
        for i in range(len(files)):
            prompt += tokenizer.encode(f"\n{i}:\n").ids + [300] + tokenizer.encode("\nsee?").ids
        ids, places, _ = process(processor, prompt, [Image.open(images / f).convert("RGB") for f in files])
        # Alone: LLaVA-NeXT's processor pads images of one call to as many tiles, of which the model takes the image's own.
        alone = [process(processor, [300], [Image.open(images / f).convert("RGB")])[2][0] for f in files]
        blobs = [encode_mm_kwargs_item(k) for k in alone]
        result["cases"][case] = {
            "images": files, "token_ids": prompt, "expanded": runs(ids), "mm_placeholders": [place(p) for p in places],
            "blobs": [{"msgpack_hex": frames(b)[0].hex(), "buffers": [hashlib.sha256(f).hexdigest() for f in frames(b)]} for b in blobs]}
    for size in SIZES:
        try:
            ids, places, kwargs = process(processor, [5, 300, 6], [Image.new("RGB", size)])
        except Exception as e:
            result["sizes"].append({"size": size, "error": type(e).__name__})
            print(name, size, repr(e)[:200], file=sys.stderr)
            continue
        result["sizes"].append({"size": size, "expanded": runs(ids), "mm_placeholder": place(places[0]),
                                "shapes": {k: list(v.data.shape) for k, v in kwargs[0].items()}})
    (folder / "cases.json.gz").write_bytes(gzip.compress(json.dumps(result).encode(), mtime=0))
    for made in ("tokenizer.json", "tokenizer_config.json"):
        (folder / made).unlink()
    print(name, result["versions"], file=sys.stderr)


MIXED = [(320, 240), (28, 28), (1280, 960), (40, 1500), (900, 70), (20, 12), (3000, 3000), (336, 336)]


def make_many(name, out):
    """Prompts with images of mixed sizes and text between them. The configs are those of the captures, with our vocabulary."""
    from PIL import Image
    from vllm.config import ModelConfig
    from vllm.multimodal import MULTIMODAL_REGISTRY
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("config", "preprocessor_config", "processor_config"):
        if not (here / name / f"{file}.json").exists():
            continue
        data = json.loads((here / name / f"{file}.json").read_text())
        for key in ("image_token_id", "image_token_index"):
            if key in data:
                data[key] = 300
        (folder / f"{file}.json").write_text(json.dumps(data))
    image = "<|image_pad|>" if name == "qwen2vl" else "<image>"
    tokenizer = vocabulary([image, "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"], folder)
    processor = MULTIMODAL_REGISTRY.create_processor(ModelConfig(str(folder), tokenizer=str(folder), max_model_len=32768))
    result = []
    for count in range(1, len(MIXED) + 1):
        prompt = [1]
        for i in range(count):
            prompt += tokenizer.encode(f"<|vision_start|>{image}<|vision_end|> picture {i}\n").ids
        ids, places, _ = process(processor, prompt, [Image.new("RGB", size) for size in MIXED[:count]])
        result.append({"sizes": MIXED[:count], "token_ids": prompt, "expanded": runs(ids), "mm_placeholders": [place(p) for p in places]})
    for made in folder.iterdir():
        made.unlink()
    (folder / "many.json.gz").write_bytes(gzip.compress(json.dumps(result).encode(), mtime=0))


if __name__ == "__main__":
    for family in sys.argv[2:] or [*FAMILIES, "qwen2vl", "llava15"]:
        (make if family in FAMILIES else make_many)(family, pathlib.Path(sys.argv[1]))
