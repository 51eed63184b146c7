"""Holds streams and bodies of /v1/responses against the published types of the Open Responses specification: each event
by its type, each response whole. Prints what doesn't fit as a JSON array of texts.

usage: check.py BASE_URL REQUEST...
"""

import inspect
import json
import sys
import urllib.error
import urllib.request

import openresponses_types as types
import pydantic

base_url, requests = sys.argv[1], sys.argv[2:]
# The specification names an event's model by its only type.
events = {}
for _, model in inspect.getmembers(types, inspect.isclass):
    if issubclass(model, pydantic.BaseModel) and "sequence_number" in model.model_fields:
        for kind in model.model_fields["type"].annotation:
            events[str(kind)] = model
# OpenAI's clients know the thought's own text under another name than the specification.
other_names = {"response.reasoning_text.delta": "response.reasoning.delta", "response.reasoning_text.done": "response.reasoning.done"}
# What the specification has no types for: tools beyond its functions.
beyond = ("custom_tool_call", "response.custom_tool_call_input")
wrong, checked = [], 0


def check(model, value, what):
    global checked
    checked += 1
    response = value.get("response", value)
    if isinstance(response.get("text"), dict) and "schema" in response["text"]["format"]:
        response["text"]["format"]["schema"] = None  # the only value that the published type has
    try:
        model.model_validate(value)
    except pydantic.ValidationError as e:
        for error in e.errors():
            wrong.append(f"{what}: {'.'.join(map(str, error['loc']))}: {error['msg']}, not {error['input']!r}"[:300])


def post(body):
    request = urllib.request.Request(
        base_url + "/v1/responses", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=30)


for text in requests:
    body = json.loads(text)
    with post(body | {"stream": True}) as answer:
        for line in answer.read().decode().splitlines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[len("data: "):])
            if any(kind in line for kind in beyond):
                continue
            event["type"] = other_names.get(event["type"], event["type"])
            if event["type"] in events:
                check(events[event["type"]], event, event["type"])
            else:
                wrong.append(f"no such event: {event['type']}")
    try:
        with post(body) as answer:
            whole = json.load(answer)
    except urllib.error.HTTPError:
        continue  # of a worker that breaks off
    if not any(item["type"] in beyond for item in whole["output"]):
        check(types.ResponseResource, whole, "the body")
assert checked > 20, checked
print(json.dumps(sorted(set(wrong))))
