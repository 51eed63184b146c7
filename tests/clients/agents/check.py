"""Lets OpenAI's agents SDK do a task over /v1/responses: the model calls two tools at once, then answers with what they
said. Whole and streamed; the second time the conversation goes on by the id of its last response. Prints one JSON object.

usage: check.py BASE_URL
"""

import asyncio
import json
import sys

import agents
import openai

client = openai.AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="unused", max_retries=0, timeout=30)
agents.set_tracing_disabled(True)
called = []


@agents.function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    called.append(city)
    return f"{city}: rain"


def new_agent():
    return agents.Agent(
        name="weather",
        instructions="Be brief.",
        model=agents.OpenAIResponsesModel(model="agent", openai_client=client),
        tools=[get_weather],
    )


async def main():
    first = await agents.Runner.run(new_agent(), "Weather?", max_turns=4)
    streamed = agents.Runner.run_streamed(
        new_agent(), "And today?", max_turns=4, previous_response_id=first.last_response_id)
    text = ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    print(json.dumps({
        "called": called,
        "answer": first.final_output,
        "items": [item.type for item in first.new_items],
        "streamed": streamed.final_output,
        "deltas": text,
    }))


asyncio.run(main())
