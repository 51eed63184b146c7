"""Runs LlamaIndex's integration for OpenAI-like servers against a server whose worker plays the scripts of sdks_test.go.
Prints one JSON line per check.

usage: llamaindex_check.py BASE_URL
"""

import sys

import openai
from llama_index.core.llms import ChatMessage, TextBlock
from llama_index.core.program import LLMTextCompletionProgram
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from reports import report

base_url = sys.argv[1] + "/v1"
GREETING = "Hello there, friend."
CALLS = [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": 'Zürich "HB"'}), ("get_time", {})]


class Person(BaseModel):
    """Somebody."""
    name: str
    age: int


def get_weather(city: str) -> str:
    """Weather of a city."""
    return "sun in " + city


def get_time() -> str:
    """The time."""
    return "noon"


TOOLS = [FunctionTool.from_defaults(get_weather), FunctionTool.from_defaults(get_time)]


def model(name, **options):
    return OpenAILike(
        model=name, api_base=base_url, api_key="unused", max_retries=0, timeout=20, is_chat_model=True,
        is_function_calling_model=True, context_window=8192, **options)


def ask(text):
    return [ChatMessage(role="system", content="Be kind."), ChatMessage(role="user", content=text)]


def text():
    answer = model("chat", temperature=0.5, max_tokens=64).chat(ask("Say hello."))
    assert answer.message.content == GREETING, answer
    assert answer.raw.choices[0].finish_reason == "stop", answer.raw


def complete():
    assert model("chat").complete("Say hello.").text == GREETING


def completion():
    plain = OpenAILike(
        model="chat", api_base=base_url, api_key="unused", max_retries=0, is_chat_model=False, context_window=8192)
    assert plain.complete("Say hello.").text == GREETING
    assert "".join(p.delta for p in plain.stream_complete("Say hello.")) == GREETING


def stream():
    parts = list(model("chat").stream_chat(ask("Say hello.")))
    assert "".join(p.delta or "" for p in parts) == GREETING and parts[-1].message.content == GREETING, parts


def multi_turn():
    messages = ask("Hi.") + [
        ChatMessage(role="assistant", content="Hello."),
        ChatMessage(role="user", blocks=[TextBlock(text="And now?"), TextBlock(text="Well?")])]
    assert model("chat").chat(messages).message.content == GREETING


def tools():
    llm = model("tools")
    answer = llm.chat_with_tools(TOOLS, user_msg="Weather?", allow_parallel_tool_calls=True)
    calls = llm.get_tool_calls_from_response(answer)
    assert [(c.tool_name, c.tool_kwargs) for c in calls] == CALLS, calls
    assert len({c.tool_id for c in calls}) == 3, calls


def tools_stream():
    llm = model("tools")
    *_, last = llm.stream_chat_with_tools(TOOLS, user_msg="Weather?", allow_parallel_tool_calls=True)
    calls = llm.get_tool_calls_from_response(last)
    assert [(c.tool_name, c.tool_kwargs) for c in calls] == CALLS, calls


def agent():
    """The results go back, and the model answers with text."""
    llm, history = model("agent"), ask("Weather?")
    first = llm.chat_with_tools(TOOLS, chat_history=history, allow_parallel_tool_calls=True)
    by_name = {t.metadata.name: t for t in TOOLS}
    history.append(first.message)
    for call in llm.get_tool_calls_from_response(first):
        result = by_name[call.tool_name](**call.tool_kwargs)
        history.append(ChatMessage(
            role="tool", content=str(result), additional_kwargs={"tool_call_id": call.tool_id, "name": call.tool_name}))
    answer = llm.chat_with_tools(TOOLS, chat_history=history)
    assert answer.message.content == GREETING, answer


def tool_choice():
    llm = model("forced")
    answer = llm.chat_with_tools(TOOLS, user_msg="Weather?", tool_choice="get_weather")
    calls = llm.get_tool_calls_from_response(answer)
    assert [(c.tool_name, c.tool_kwargs) for c in calls] == [("get_weather", {"city": "Oslo"})], calls


def structured():
    answer = model("json", should_use_structured_outputs=True).as_structured_llm(Person).chat(ask("Who?"))
    assert answer.raw == Person(name="Ada", age=36), answer
    program = LLMTextCompletionProgram.from_defaults(
        output_cls=Person, prompt_template_str="Who? In JSON.", llm=model("json"))
    assert program() == Person(name="Ada", age=36)


def raises(kind, call):
    try:
        call()
    except kind as e:
        assert "secret" not in str(e), e
        return
    raise AssertionError(f"no {kind.__name__}")


def errors():
    raises(openai.NotFoundError, lambda: model("none").chat(ask("Hi")))
    raises(openai.BadRequestError, lambda: model("chat", temperature=1, additional_kwargs={"temperature": 17}).chat(ask("Hi")))
    raises(openai.InternalServerError, lambda: model("broken").chat(ask("Hi")))


def error_in_stream():
    raises(openai.APIError, lambda: list(model("breaks").stream_chat(ask("Hi"))))


def cancel():
    stream = model("slow").stream_chat(ask("Hi"))
    for part in stream:
        if part.delta:
            break
    stream.close()


def embeddings():
    model = OpenAILikeEmbedding(model_name="embed", api_base=base_url, api_key="unused", max_retries=0)
    assert model.get_text_embedding_batch(["a", "bc"]) == [[1, 0.5], [2, 0.5]]
    assert model.get_query_embedding("abc") == [3, 0.5]


report(text, complete, completion, stream, multi_turn, tools, tools_stream, agent, tool_choice, structured, errors,
       error_in_stream, cancel, embeddings)
