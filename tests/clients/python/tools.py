"""Puts a streamed answer together with the official client's own accumulator, and asks for the same in one body. Prints
both messages as one JSON object.

usage: tools.py BASE_URL MODEL
"""

import json
import sys

import openai

base_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0, timeout=30)
NAMES = ["get_weather", "get_time"]
ask = {
    "model": model,
    "messages": [{"role": "user", "content": "Weather in three cities?"}],
    "tools": [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
        for name in NAMES
    ],
}


def seen(message, reason):
    return {
        "content": message.content,
        "reasoning": getattr(message, "reasoning_content", None),
        "calls": [[c.function.name, c.function.arguments] for c in message.tool_calls or []],
        "ids": len({c.id for c in message.tool_calls or []}),
        "finish": reason,
    }


with client.chat.completions.stream(**ask) as stream:
    done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
    final = stream.get_final_completion().choices[0]
whole = client.chat.completions.create(**ask).choices[0]
print(json.dumps({
    "stream": seen(final.message, final.finish_reason),
    "whole": seen(whole.message, whole.finish_reason),
    "done": [[e.name, e.index, e.arguments] for e in done],
}))
