"""Runs OpenAI's own client against a server whose worker plays the scripts of sdks_test.go: what check.py, which runs
against any server, can't ask for. Prints one JSON line per check.

usage: sdk_check.py BASE_URL
"""

import json
import sys

import openai
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from reports import report

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="unused", max_retries=0, timeout=20)
QUESTION = [{"role": "user", "content": "Who?"}]
GREETING = "Hello there, friend."
CALLS = [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": 'Zürich "HB"'}), ("get_time", {})]


class Person(BaseModel):
    name: str
    age: int


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}


TOOLS = [tool("get_weather", city={"type": "string"}), tool("get_time")]


def text():
    answer = client.chat.completions.create(model="chat", messages=QUESTION)
    assert answer.choices[0].message.content == GREETING, answer
    parts = [c.delta.content for chunk in client.chat.completions.create(model="chat", messages=QUESTION, stream=True)
             for c in chunk.choices if c.delta.content]
    assert "".join(parts) == GREETING and len(parts) > 3, parts


def calls():
    """Parsed by the client: strict functions."""
    message = client.chat.completions.parse(model="tools", messages=QUESTION, tools=TOOLS).choices[0].message
    assert [(c.function.name, c.function.parsed_arguments) for c in message.tool_calls] == CALLS, message
    with client.chat.completions.stream(model="tools", messages=QUESTION, tools=TOOLS) as stream:
        message = stream.until_done().get_final_completion().choices[0].message
    assert [(c.function.name, c.function.parsed_arguments) for c in message.tool_calls] == CALLS, message
    assert len({c.id for c in message.tool_calls}) == 3, message


def agent():
    """The results go back, and the model answers with text."""
    messages = [{"role": "system", "content": "Be kind."}, *QUESTION]
    first = client.chat.completions.create(model="agent", messages=messages, tools=TOOLS).choices[0].message
    messages.append(first)
    for call in first.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "sun"})
    last = client.chat.completions.create(model="agent", messages=messages, tools=TOOLS).choices[0].message
    assert last.content == GREETING and not last.tool_calls, last


def own_tools():
    """OpenAI's own tools, each event as its published type wants it."""
    published, commands, diff = TypeAdapter(ResponseStreamEvent), [], ""
    with client.responses.stream(model="own", input="Go.", tools=[{"type": "shell"}, {"type": "apply_patch"}]) as stream:
        for event in stream:
            if event.type.startswith("response.apply_patch_call_operation_diff."):  # not among the types
                diff += event.delta if event.type.endswith(".delta") else ""
                continue
            published.validate_python(event.to_dict())
            if event.type == "response.shell_call_command.done":
                commands.append(event.command)
        shell, patch = stream.get_final_response().output
    assert commands == shell.action.commands == ["ls", "wc a"] and shell.status == "completed", shell
    assert diff == patch.operation.diff == '+"a"' and patch.operation.path == "x", patch


def structured():
    parsed = client.chat.completions.parse(model="json", messages=QUESTION, response_format=Person)
    assert parsed.choices[0].message.parsed == Person(name="Ada", age=36), parsed
    mode = client.chat.completions.create(model="json", messages=QUESTION, response_format={"type": "json_object"})
    assert json.loads(mode.choices[0].message.content) == {"name": "Ada", "age": 36}, mode


def structured_stream():
    with client.chat.completions.stream(model="json", messages=QUESTION, response_format=Person) as stream:
        partial = [e.parsed for e in stream if e.type == "content.delta"]
        final = stream.get_final_completion().choices[0].message.parsed
    assert final == Person(name="Ada", age=36) and len(partial) > 3, (final, partial)


def raises(kind, **ask):
    try:
        client.chat.completions.create(**{"model": "chat", "messages": QUESTION, **ask})
    except kind as e:
        assert type(e) is kind and "secret" not in str(e), repr(e)
        return
    raise AssertionError(f"no {kind.__name__}")


def errors():
    for more in ({}, {"stream": True}):
        raises(openai.NotFoundError, model="none", **more)
        raises(openai.BadRequestError, temperature=17, **more)
        raises(openai.InternalServerError, model="broken", **more)


def error_in_stream():
    seen = ""
    try:
        for chunk in client.chat.completions.create(model="breaks", messages=QUESTION, stream=True):
            for choice in chunk.choices:
                seen += choice.delta.content or ""
                assert choice.finish_reason is None, choice
    except openai.APIError as e:
        assert seen == "Hel" and "secret" not in str(e), (seen, repr(e))
        return
    raise AssertionError("the end looks like a good one")


def cancel():
    stream = client.chat.completions.create(model="slow", messages=QUESTION, stream=True)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    stream.close()


report(text, calls, agent, own_tools, structured, structured_stream, errors, error_in_stream, cancel)
