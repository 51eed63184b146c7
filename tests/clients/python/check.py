"""Runs the official client against a server and prints one JSON line per check: {"check", "ok", "detail"}.

usage: check.py BASE_URL MODEL
"""

import json
import sys

import openai

base_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0, timeout=30)
QUESTION = [{"role": "user", "content": "Say something."}]


def models():
    names = [m.id for m in client.models.list()]
    assert model in names, names


def model_one():
    assert client.models.retrieve(model).id == model


def chat():
    answer = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=8)
    assert answer.object == "chat.completion", answer.object
    assert answer.id.startswith("chatcmpl-"), answer.id
    [choice] = answer.choices
    assert choice.message.role == "assistant" and choice.message.content, choice
    assert choice.finish_reason == "length", choice.finish_reason
    assert answer.usage.completion_tokens == 8, answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8, answer.usage


def chat_stream():
    text, reasons, usage, roles = "", [], None, []
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=8, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        assert chunk.object == "chat.completion.chunk", chunk.object
        if chunk.usage:
            assert not chunk.choices, chunk
            usage = chunk.usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            if choice.delta.role:
                roles.append(choice.delta.role)
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    assert text and reasons == ["length"] and roles == ["assistant"], (text, reasons, roles)
    assert usage and usage.completion_tokens == 8, usage


def chat_stream_helper():
    with client.chat.completions.stream(model=model, messages=QUESTION, max_tokens=8) as stream:
        kinds = {event.type for event in stream}
        final = stream.current_completion_snapshot
    assert "chunk" in kinds and "content.delta" in kinds, kinds
    assert final.choices[0].message.content, final


def chat_early_close():
    stream = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=64, stream=True)
    next(iter(stream))
    stream.close()
    chat()  # the server goes on


def chat_logprobs():
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=4, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content, answer


def completion():
    answer = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8)
    assert answer.object == "text_completion" and answer.choices[0].text, answer
    assert answer.usage.completion_tokens == 8, answer.usage


def completion_stream():
    parts = [c.text for chunk in client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=8, stream=True) for c in chunk.choices]
    assert "".join(parts), parts


def completion_batch():
    answer = client.completions.create(model=model, prompt=["One", "Two", "Three"], max_tokens=4)
    assert sorted(c.index for c in answer.choices) == [0, 1, 2], answer


def raises(error, call):
    try:
        call()
    except error as e:
        assert type(e) is error, type(e)
        assert e.status_code, e
        return e
    raise AssertionError(f"no {error.__name__}")


def error_unknown_model():
    raises(openai.NotFoundError, lambda: client.chat.completions.create(
        model="no-such-model", messages=QUESTION, max_tokens=4))


def error_unknown_model_stream():
    raises(openai.NotFoundError, lambda: client.chat.completions.create(
        model="no-such-model", messages=QUESTION, max_tokens=4, stream=True))


def error_unknown_model_retrieve():
    raises(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))


def error_bad_value():
    raises(openai.BadRequestError, lambda: client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=4, temperature=17))


def error_bad_type():
    raises(openai.BadRequestError, lambda: client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens="many"))


def error_fields():
    """The nested error object fills the exception's fields."""
    e = raises(openai.BadRequestError, lambda: client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=4, temperature=17))
    assert e.param == "temperature" and e.type == "invalid_request_error", (e.param, e.type, e.body)


CHECKS = [
    models, model_one, chat, chat_stream, chat_stream_helper, chat_early_close, chat_logprobs, completion,
    completion_stream, completion_batch, error_unknown_model, error_unknown_model_stream,
    error_unknown_model_retrieve, error_bad_value, error_bad_type, error_fields,
]

for check in CHECKS:
    line = {"check": check.__name__, "ok": True, "detail": ""}
    try:
        check()
    except Exception as e:  # every check reports, whatever the others do
        line.update(ok=False, detail=f"{type(e).__name__}: {e}"[:600])
    print(json.dumps(line), flush=True)
