"""The same as ../python/turns.py with OpenAI's agents SDK, over /v1/responses: in one body each, with the conversation
sent along, and streamed, where it goes on by the id of the last response.

usage: turns.py BASE_URL MODEL TOKENS SYSTEM QUESTION...
"""

import asyncio
import json
import sys

import agents
import openai

base_url, model, tokens, system, *questions = sys.argv[1:]
client = openai.AsyncOpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0, timeout=120)
agents.set_tracing_disabled(True)
agent = agents.Agent(
    name="turns",
    instructions=system,
    model=agents.OpenAIResponsesModel(model=model, openai_client=client),
    model_settings=agents.ModelSettings(temperature=0, max_tokens=int(tokens)),
)


async def whole():
    items, answers = [], []
    for question in questions:
        result = await agents.Runner.run(agent, items + [{"role": "user", "content": question}])
        items = result.to_input_list()
        answers.append(result.final_output)
    return answers


async def streamed():
    last, answers = None, []
    for question in questions:
        result = agents.Runner.run_streamed(agent, question, previous_response_id=last)
        text = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        assert text == result.final_output, (text, result.final_output)
        last = result.last_response_id
        answers.append(text)
    return answers


async def main():
    print(json.dumps({"whole": await whole(), "streamed": await streamed()}))


asyncio.run(main())
