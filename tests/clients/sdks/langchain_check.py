"""Runs LangChain's OpenAI integration against a server whose worker plays the scripts of sdks_test.go. Prints one JSON
line per check.

usage: langchain_check.py BASE_URL
"""

import sys

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from reports import report

base_url = sys.argv[1] + "/v1"
GREETING = "Hello there, friend."
CALLS = [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": 'Zürich "HB"'}), ("get_time", {})]


class Person(BaseModel):
    """Somebody."""
    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    return "sun in " + city


@tool
def get_time() -> str:
    """The time."""
    return "noon"


TOOLS = [get_weather, get_time]


def model(name, **options):
    return ChatOpenAI(model=name, base_url=base_url, api_key="unused", max_retries=0, timeout=20, **options)


def text():
    answer = model("chat", temperature=0.5, max_tokens=64, seed=1, stop=["END"]).invoke("Say hello.")
    assert answer.content == GREETING, answer
    assert answer.response_metadata["finish_reason"] == "stop", answer.response_metadata
    assert answer.usage_metadata["output_tokens"] == len(GREETING) + 1, answer.usage_metadata


def stream():
    parts = list(model("chat", stream_usage=True).stream("Say hello."))
    assert "".join(p.content for p in parts) == GREETING and len(parts) > 3, parts
    usage = [p.usage_metadata for p in parts if p.usage_metadata]
    assert len(usage) == 1 and usage[0]["output_tokens"] == len(GREETING) + 1, usage


def multi_turn():
    answer = model("chat").invoke([
        SystemMessage("Be kind."), HumanMessage([{"type": "text", "text": "Hi."}], name="bob"), AIMessage("Hello."),
        HumanMessage("And now?")])
    assert answer.content == GREETING, answer


def batch():
    answers = model("chat").batch(["One", "Two", "Three"])
    assert [a.content for a in answers] == [GREETING] * 3, answers


def completion():
    answer = OpenAI(model="chat", base_url=base_url, api_key="unused", max_retries=0, max_tokens=64).invoke("Say hello.")
    assert answer == GREETING, answer


def tools():
    answer = model("tools").bind_tools(TOOLS).invoke("Weather?")
    assert [(c["name"], c["args"]) for c in answer.tool_calls] == CALLS, answer.tool_calls
    assert len({c["id"] for c in answer.tool_calls}) == 3 and not answer.invalid_tool_calls, answer
    assert answer.content == "I'll look. ", answer


def tools_stream():
    whole = None
    for part in model("tools").bind_tools(TOOLS, parallel_tool_calls=True, strict=False).stream("Weather?"):
        whole = part if whole is None else whole + part
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == CALLS, whole
    assert whole.response_metadata["finish_reason"] == "tool_calls", whole.response_metadata


def agent():
    """The results go back, and the model answers with text."""
    bound, messages = model("agent").bind_tools(TOOLS), [HumanMessage("Weather?")]
    first = bound.invoke(messages)
    by_name = {t.name: t for t in TOOLS}
    results = [by_name[c["name"]].invoke(c) for c in first.tool_calls]
    assert all(isinstance(r, ToolMessage) for r in results), results
    assert bound.invoke(messages + [first] + results).content == GREETING


def tool_choice():
    answer = model("forced").bind_tools(TOOLS, tool_choice="get_weather").invoke("Weather?")
    assert [(c["name"], c["args"]) for c in answer.tool_calls] == [("get_weather", {"city": "Oslo"})], answer


def structured():
    for method in ("json_schema", "json_mode"):
        answer = model("json").with_structured_output(Person, method=method).invoke("Who? In json.")
        assert answer == Person(name="Ada", age=36), (method, answer)


def structured_stream():
    parts = list(model("json").with_structured_output(Person, method="json_schema").stream("Who?"))
    assert parts[-1] == Person(name="Ada", age=36), parts


def raises(kind, call):
    try:
        call()
    except kind as e:
        assert "secret" not in str(e), e
        return
    raise AssertionError(f"no {kind.__name__}")


def errors():
    raises(openai.NotFoundError, lambda: model("none").invoke("Hi"))
    raises(openai.BadRequestError, lambda: model("chat", temperature=17).invoke("Hi"))
    raises(openai.InternalServerError, lambda: model("broken").invoke("Hi"))


def error_in_stream():
    seen = []
    raises(openai.APIError, lambda: seen.extend(p.content for p in model("breaks").stream("Hi")))


def cancel():
    stream = model("slow").stream("Hi")
    for part in stream:
        if part.content:
            break
    stream.close()


def embeddings():
    """Texts go as they are; otherwise the client would tokenise them for a model of OpenAI's."""
    model = OpenAIEmbeddings(
        model="embed", base_url=base_url, api_key="unused", max_retries=0, check_embedding_ctx_length=False)
    assert model.embed_documents(["a", "bc"]) == [[1, 0.5], [2, 0.5]]
    assert model.embed_query("abc") == [3, 0.5]


report(text, stream, multi_turn, batch, completion, tools, tools_stream, agent, tool_choice, structured, structured_stream,
       errors, error_in_stream, cancel, embeddings)
