"""A Dynamo worker without a model behind it for every surface that isn't generation: embeddings of text and of tokens,
rerank, classify and pooling, images, speech and videos. Its numbers follow from its input by simple rules, so that a
test can work them out. What arrives is printed, one JSON line for each request.
"""

import argparse
import asyncio
import base64
import json
import signal
import struct

from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import dynamo_worker
from dynamo.runtime.logging import configure_dynamo_logging

DIMENSIONS = 4


def vector(item, dimensions):
    """One number for each dimension: the sum of the item's code points or token ids, divided by its place."""
    total = sum(item if isinstance(item, list) else map(ord, item))
    return [total / place for place in range(1, (dimensions or DIMENSIONS) + 1)]


def packed(numbers):
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def batch(value):
    """The four forms of input as a list of texts or of lists of ids."""
    return [value] if isinstance(value, str) or value and isinstance(value[0], int) else value


def usage(tokens):
    return {"prompt_tokens": tokens, "total_tokens": tokens}


async def embed_text(request):
    items = batch(request["input"])
    if "explode" in items:
        raise ValueError("the engine gave up")
    yield {
        "object": "list", "model": request["model"], "usage": usage(sum(map(len, items))),
        "data": [{"object": "embedding", "index": i, "embedding": packed(vector(item, request.get("dimensions")))}
                 for i, item in enumerate(items)],
    }


async def embed_tokens(request):
    items = request["token_ids"]
    tokens = sum(map(len, items))
    yield {"embeddings": [packed(vector(list(item), request.get("dimensions"))) for item in items],
           "prompt_tokens": tokens, "total_tokens": tokens}


async def rerank(request):
    scored = [{"score": float(len(set(request["query"]) & set(text))), "index": i, "document": text}
              for i, text in enumerate(request["documents"])]
    scored.sort(key=lambda one: -one["score"])
    yield scored[:request.get("top_n") or len(scored)]


async def classify(request):
    items = batch(request["input"])
    # Workers tell the two routes apart by this field.
    kind = "pooling" if "encoding_format" in request else "classify"
    data = [{"index": i, "object": "pooling", "data": vector(item, 2)} if kind == "pooling"
            else {"index": i, "label": "odd" if len(item) % 2 else "even", "probs": [1.0, 0.0], "num_classes": 2}
            for i, item in enumerate(items)]
    tokens = sum(map(len, items))
    yield {"id": kind + "-1", "object": "list", "created": 1, "model": request["model"], "data": data,
           "usage": usage(tokens) | {"completion_tokens": 0}}


async def image(request):
    yield {"created": 1, "data": [{"url": None, "b64_json": "AAAA", "revised_prompt": request["prompt"]}]}


async def speech(request):
    audio = base64.b64encode(request["input"].encode()).decode()
    yield {"id": "audio-1", "object": "audio.speech", "model": request["model"], "status": "completed", "progress": 100,
           "created": 1, "data": [{"output_format": request.get("response_format") or "wav", "url": None, "b64_json": audio}], "error": None, "inference_time_s": 0.1}


async def video(request):
    """As many frames as are asked for, or else a whole video."""
    answer = {"id": "video-1", "object": "video", "model": request["model"], "created": 1, "error": None, "inference_time_s": 0.1}
    count = (request.get("nvext") or {}).get("num_frames") or 0
    for i in range(count):
        frame = base64.b64encode(f"{request['prompt']} {i}".encode()).decode()
        yield answer | {"status": "in_progress", "progress": 100 * i // count,
                        "data": [{"output_format": "mjpeg", "url": None, "b64_json": frame}]}
    if not count:
        yield answer | {"status": "completed", "progress": 100,
                        "data": [{"output_format": "mp4", "url": "file:///v.mp4", "b64_json": None}]}


MODELS = [
    ("embed-text", ModelInput.Text, ModelType.Embedding, embed_text),
    ("embed-tokens", ModelInput.Tokens, ModelType.Embedding, embed_tokens),
    ("rerank", ModelInput.Text, ModelType.Rerank, rerank),
    ("classify", ModelInput.Text, ModelType.Classify | ModelType.Pooling, classify),
    ("image", ModelInput.Text, ModelType.Images, image),
    ("speech", ModelInput.Text, ModelType.Audios, speech),
    ("video", ModelInput.Text, ModelType.Videos, video),
]


@dynamo_worker()  # discovery and planes follow the DYN_ variables
async def serve(runtime, args: argparse.Namespace):
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runtime.shutdown)

    def printing(name, answer):
        async def generate(request, context):
            print(json.dumps({"model": name, "request": request}), flush=True)
            async for item in answer(request):
                yield item
        return generate

    served = []
    for name, form, kind, answer in MODELS:
        if args.only not in (None, name):
            continue
        endpoint = runtime.endpoint(f"dynamo.{name}.generate")
        await register_model(form, kind, endpoint, args.model_path, name, worker_type=WorkerType.Aggregated,
                             runtime_config=ModelRuntimeConfig())
        served.append(endpoint.serve_endpoint(printing(name, answer)))
    await asyncio.gather(*served)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", required=True)
    # With NATS as the request plane a process can't register a second model before the first is served.
    parser.add_argument("--only", help="serve this model alone")
    configure_dynamo_logging()
    asyncio.run(serve(parser.parse_args()))
