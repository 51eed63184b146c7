"""Runs Anthropic's official client against a server and prints one JSON line per check: {"check", "ok", "detail"}.

The worker behind the server answers by the last word of what it is asked; see messages_test.go.

usage: messages.py BASE_URL MODEL
"""

import json
import sys

import anthropic
import pydantic

base_url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=base_url, api_key="unused", max_retries=0, timeout=30)
TOOLS = [
    {"name": name, "description": "d", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    for name in ("get_weather", "get_time")
]


def ask(word, **more):
    return {"model": model, "max_tokens": 1000, "messages": [{"role": "user", "content": word}], **more}


def blocks(message):
    """The content without ids, which differ from answer to answer."""
    return [b.model_dump(exclude_none=True, exclude={"id", "citations", "caller"}) for b in message.content]


def text():
    message = client.messages.create(**ask("text"))
    assert blocks(message) == [{"type": "text", "text": "Hello, wörld"}], message
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn"), message
    assert message.id.startswith("msg_") and message._request_id, message
    assert message.usage.input_tokens > 0 and message.usage.output_tokens == 14, message.usage
    assert message.usage.cache_read_input_tokens == 0, message.usage


def stream():
    whole = client.messages.create(**ask("calls", tools=TOOLS))
    kinds, deltas, inputs = set(), "", []
    with client.messages.stream(**ask("calls", tools=TOOLS)) as events:
        for event in events:
            kinds.add(event.type)
            if event.type == "text":
                deltas += event.text
                assert event.snapshot == deltas, event
            if event.type == "content_block_stop" and event.content_block.type == "tool_use":
                inputs.append(event.content_block.input)
        final = events.get_final_message()
    want = [
        {"type": "thinking", "thinking": "Three cities, three calls.", "signature": "erased"},
        {"type": "text", "text": "I'll look. "},
        {"type": "tool_use", "name": "get_weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "name": "get_weather", "input": {"city": 'Zürich "HB"'}},
        {"type": "tool_use", "name": "get_time", "input": {}},
    ]
    assert blocks(final) == want, blocks(final)
    assert blocks(whole) == want, blocks(whole)
    assert inputs == [w["input"] for w in want[2:]], inputs
    assert {"thinking", "signature", "text", "input_json", "content_block_stop", "message_stop"} <= kinds, kinds
    assert deltas == "I'll look. ", deltas
    for message in (final, whole):
        assert message.stop_reason == "tool_use" and message.stop_sequence is None, message
        assert len({b.id for b in message.content if b.type == "tool_use"}) == 3, message
    assert final.usage == whole.usage, (final.usage, whole.usage)


def raw_events():
    order = []
    for event in client.messages.create(**ask("calls", tools=TOOLS, stream=True)):
        if event.type.startswith("content_block"):
            order.append((event.type.removeprefix("content_block_"), event.index))
        else:
            order.append((event.type, None))
    squeezed = [e for i, e in enumerate(order) if i == 0 or e != order[i - 1]]
    want = [("message_start", None)]
    for index in range(5):
        want += [("start", index), ("delta", index), ("stop", index)]
    want[-2:-1] = []  # no arguments, no delta
    want += [("message_delta", None), ("message_stop", None)]
    alternative = want[:-3] + [("delta", 4)] + want[-3:]
    assert squeezed in (want, alternative), squeezed


def history():
    """What the client got goes back with the results, as an agent does it."""
    first = client.messages.create(**ask("calls", tools=TOOLS))
    results = [
        {"type": "tool_result", "tool_use_id": b.id, "content": [{"type": "text", "text": "18 degrees"}]}
        for b in first.content if b.type == "tool_use"
    ]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "calls", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "text"}]},
    ]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    again = client.messages.create(**ask("") | {"messages": messages, "tools": TOOLS, "system": system})
    assert blocks(again) == [{"type": "text", "text": "Hello, wörld"}], again
    counted = client.messages.count_tokens(model=model, messages=messages, tools=TOOLS, system=system)
    assert counted.input_tokens == again.usage.input_tokens, (counted, again.usage)


def tool_runner():
    cities = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather.

        Args:
            city: where
        """
        cities.append(city)
        return "18 degrees"

    @anthropic.beta_tool
    def get_time() -> str:
        """The time."""
        return "text"

    runner = client.beta.messages.tool_runner(**ask("calls", tools=[get_weather, get_time]))
    final = runner.until_done()
    assert cities == ["Oslo", 'Zürich "HB"'], cities
    assert final.content[-1].text == "Hello, wörld", final


def structured():
    class City(pydantic.BaseModel):
        city: str

    parsed = client.messages.parse(**ask("json", output_format=City))
    assert parsed.parsed_output == City(city="Oslo"), parsed


def stops():
    message = client.messages.create(**ask("text", stop_sequences=["zzz", ", w"]))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", ", w"), message
    assert message.content[0].text == "Hello", message
    message = client.messages.create(**ask("long", max_tokens=5))
    assert message.stop_reason == "max_tokens", message


def cached():
    message = client.messages.create(**ask("cached"))
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (36, 64), message.usage
    with client.messages.stream(**ask("cached")) as events:
        final = events.get_final_message()
    assert (final.usage.input_tokens, final.usage.cache_read_input_tokens) == (36, 64), final.usage


def models():
    page = client.models.list()
    assert [m.id for m in page.data] == [model] and not page.has_more, page
    assert client.models.retrieve(model).display_name == model


def raises(kind, status, call, contains):
    try:
        call()
    except kind as error:
        assert getattr(error, "status_code", status) == status, error
        assert contains in str(error), str(error)
        return
    raise AssertionError(f"no {kind.__name__}")


def errors():
    create = client.messages.create
    raises(anthropic.NotFoundError, 404, lambda: create(**ask("text") | {"model": "nope"}), "not_found_error")
    raises(anthropic.BadRequestError, 400, lambda: create(**ask("text", extra_body={"temperature": 9})), "`temperature` must be from 0 to 2")
    raises(anthropic.BadRequestError, 400, lambda: create(**ask("text", tools=[{"name": "f" * 200, "input_schema": {}}])),
           "`tools[0].name` must have at most 128 bytes")
    raises(anthropic.RequestTooLargeError, 413, lambda: create(**ask("x" * 20000)), "request_too_large")
    raises(anthropic.RateLimitError, 429, lambda: create(**ask("limited")), "rate_limit_error")
    raises(anthropic.OverloadedError, 529, lambda: create(**ask("full")), "overloaded_error")
    raises(anthropic.InternalServerError, 500, lambda: create(**ask("fails")), "api_error")


def broken_stream():
    seen = ""

    def read():
        nonlocal seen
        with client.messages.stream(**ask("breaks")) as events:
            for piece in events.text_stream:
                seen += piece

    raises(anthropic.APIStatusError, 200, read, "Internal server error")
    assert seen == "ab", seen


def early_close():
    with client.messages.stream(**ask("endless")) as events:
        next(iter(events.text_stream))
    text()  # the server goes on


for check in (text, stream, raw_events, history, tool_runner, structured, stops, cached, models, errors, broken_stream,
              early_close):
    try:
        check()
        print(json.dumps({"check": check.__name__, "ok": True}), flush=True)
    except Exception as error:  # noqa: BLE001 - every failure is a line of the report
        print(json.dumps({"check": check.__name__, "ok": False, "detail": f"{type(error).__name__}: {error}"}), flush=True)
