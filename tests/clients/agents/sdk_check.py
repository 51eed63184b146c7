"""Runs OpenAI's agents SDK, over /v1/responses, against a server whose worker plays the scripts of sdks_test.go. Prints
one JSON line per check.

usage: sdk_check.py BASE_URL
"""

import asyncio
import sys

import agents
import openai
from pydantic import BaseModel

from reports import report

client = openai.AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="unused", max_retries=0, timeout=20)
agents.set_tracing_disabled(True)
GREETING = "Hello there, friend."
ran = []
loop = asyncio.new_event_loop()  # the client keeps its connections, which belong to one


class Person(BaseModel):
    name: str
    age: int


@agents.function_tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    ran.append(city)
    return "sun in " + city


@agents.function_tool
def get_time() -> str:
    """The time."""
    ran.append("time")
    return "noon"


def agent(model, **more):
    return agents.Agent(
        name="a", instructions="Be kind.", model=agents.OpenAIResponsesModel(model=model, openai_client=client), **more)


def run(model, **more):
    return loop.run_until_complete(agents.Runner.run(agent(model, **more), "Say hello.", max_turns=3))


async def streamed(model, leave=False, **more):
    """The text of a streamed run, and its result."""
    result, text = agents.Runner.run_streamed(agent(model, **more), "Say hello.", max_turns=3), ""
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
            if leave:
                result.cancel()
    return text, result


def text():
    assert run("chat").final_output == GREETING


def stream():
    got, result = loop.run_until_complete(streamed("chat"))
    assert got == GREETING == result.final_output, got


def three_calls():
    for how in ("whole", "streamed"):
        ran.clear()
        result = run("agent", tools=[get_weather, get_time]) if how == "whole" else \
            loop.run_until_complete(streamed("agent", tools=[get_weather, get_time]))[1]
        assert sorted(ran) == ["Oslo", 'Zürich "HB"', "time"], ran
        assert result.final_output == GREETING, result
        calls = [item.raw_item.call_id for item in result.new_items if item.type == "tool_call_item"]
        assert len(set(calls)) == 3, calls


def shell():
    """A command runs in the client's own shell, and what it printed goes back."""
    commands = []

    def execute(request):
        commands.append(request.data.action.command)
        return "two files"

    result = run("shell", tools=[agents.LocalShellTool(executor=execute)])
    assert commands == [["ls", "-l"]] and result.final_output == GREETING, (commands, result)


class Editor:
    def __init__(self):
        self.changes = []

    def create_file(self, operation):
        self.changes.append((operation.type, operation.path, operation.diff))
        return agents.ApplyPatchResult(status="completed", output="created")

    update_file = delete_file = create_file


def own_tools():
    """Lines for the client's shell, and a change of one of its files."""
    for how in ("whole", "streamed"):
        commands, editor = [], Editor()

        def execute(request):
            commands.extend(request.data.action.commands)
            return agents.ShellResult(output=[agents.ShellCommandOutput(stdout="two files\n"), agents.ShellCommandOutput(
                stderr="no a", outcome=agents.ShellCallOutcome(type="exit", exit_code=1))])

        tools = [agents.ShellTool(executor=execute), agents.ApplyPatchTool(editor=editor)]
        result = run("own", tools=tools) if how == "whole" else loop.run_until_complete(streamed("own", tools=tools))[1]
        assert commands == ["ls", "wc a"] and editor.changes == [("create_file", "x", '+"a"')], (commands, editor.changes)
        assert result.final_output == GREETING, result


def structured():
    assert run("json", output_type=Person).final_output == Person(name="Ada", age=36)


def structured_stream():
    got, result = loop.run_until_complete(streamed("json", output_type=Person))
    assert result.final_output == Person(name="Ada", age=36), (got, result.final_output)


def raises(kind, call):
    try:
        call()
    except kind as e:
        assert "secret" not in str(e), repr(e)
        return
    raise AssertionError(f"no {kind.__name__}")


def errors():
    raises(openai.NotFoundError, lambda: run("none"))
    raises(openai.BadRequestError, lambda: run("chat", model_settings=agents.ModelSettings(temperature=17)))
    raises(openai.InternalServerError, lambda: run("broken"))


def error_in_stream():
    raises(agents.ModelBehaviorError, lambda: loop.run_until_complete(streamed("breaks")))


def cancel():
    got, _ = loop.run_until_complete(streamed("slow", leave=True))
    assert got, got


report(text, stream, three_calls, shell, own_tools, structured, structured_stream, errors, error_in_stream, cancel)
