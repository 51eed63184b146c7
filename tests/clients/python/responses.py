"""Speaks to /v1/responses with the official client and its own accumulators: a stream and a body of the same answer,
structured output, a conversation by ids, what is kept, errors, and a stream that is left early. Prints one JSON object.

usage: responses.py BASE_URL
"""

import json
import sys

import openai
import pydantic

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="unused", max_retries=0, timeout=30)
TOOLS = [
    {"type": "function", "name": name, "strict": False, "parameters": {"type": "object", "properties": {}}}
    for name in ("get_weather", "get_time")
]
ask = {"model": "m", "input": "Weather in three cities?", "tools": TOOLS}


class Place(pydantic.BaseModel):
    city: str
    days: int


def seen(response):
    out = []
    for item in response.output:
        if item.type == "reasoning":
            out.append([item.type, item.status, "".join(part.text for part in item.content)])
        elif item.type == "function_call":
            out.append([item.type, item.status, item.name, item.arguments])
        else:
            out.append([item.type, item.status, "".join(part.text for part in item.content)])
    return {"status": response.status, "items": out, "text": response.output_text, "total": response.usage.total_tokens}


def raised(call):
    try:
        call()
    except openai.OpenAIError as e:
        return [type(e).__name__, getattr(e, "code", None), getattr(e, "param", None)]
    return None


with client.responses.stream(**ask) as stream:
    events = [e for e in stream]
    final = stream.get_final_response()
numbers = [e.sequence_number for e in events if hasattr(e, "sequence_number")]
done = [[e.output_index, e.name, e.arguments] for e in events if e.type == "response.function_call_arguments.done"]
deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
whole = client.responses.create(**ask)

parsed = client.responses.parse(model="json", input="Where?", text_format=Place).output_parsed
with client.responses.stream(model="json", input="Where?", text_format=Place) as stream:
    for _ in stream:
        pass
    streamed = stream.get_final_response().output_parsed

second = client.responses.create(model="m", input="And now?", previous_response_id=whole.id)
kept = client.responses.retrieve(second.id)
items = [i.type for i in client.responses.input_items.list(second.id, order="asc", limit=2)]
raw = [e.model_dump() for e in client.responses.create(**ask, stream=True)]
stored = raw[0]["response"]["id"]
again = [e.model_dump() for e in client.responses.retrieve(stored, stream=True)]
rest = [e.model_dump() for e in client.responses.retrieve(stored, stream=True, starting_after=9)]
counted = client.responses.input_tokens.count(model="m", input="Hello").input_tokens
client.responses.delete(whole.id)


def broken():
    for _ in client.responses.create(model="lost", input="a", stream=True):
        pass


left = client.responses.create(model="slow", input="a", stream=True)
first = [next(iter(left)).type]
left.close()

print(json.dumps({
    "stream": seen(final),
    "whole": seen(whole),
    "dense": numbers == list(range(len(numbers))),
    "done": done,
    "deltas": deltas,
    "parsed": [parsed.model_dump(), streamed.model_dump()],
    "kept": [kept.id == second.id, seen(kept) == seen(second), kept.previous_response_id == whole.id],
    "replayed": [again == raw, rest == raw[10:], len(raw) > 20],
    "items": items,
    "counted": counted,
    "left": first,
    "errors": {
        "deleted": raised(lambda: client.responses.retrieve(whole.id)),
        "unknown model": raised(lambda: client.responses.create(model="none", input="a")),
        "bad field": raised(lambda: client.responses.create(model="m", input="a", temperature=3)),
        "lost": raised(lambda: client.responses.create(model="lost", input="a")),
        "lost in a stream": raised(broken),
    },
}))
