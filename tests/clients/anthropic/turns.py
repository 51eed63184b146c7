"""The same as ../python/turns.py with Anthropic's official client, over /v1/messages.

usage: turns.py BASE_URL MODEL TOKENS SYSTEM QUESTION...
"""

import json
import sys

import anthropic

base_url, model, tokens, system, *questions = sys.argv[1:]
client = anthropic.Anthropic(base_url=base_url, api_key="unused", max_retries=0, timeout=120)


def whole(**ask):
    return client.messages.create(**ask)


def streamed(**ask):
    with client.messages.stream(**ask) as stream:
        return stream.get_final_message()


def turns(ask):
    messages = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        message = ask(model=model, system=system, messages=messages, max_tokens=int(tokens), extra_body={"temperature": 0})
        messages.append({"role": "assistant", "content": message.content})
        yield "".join(block.text for block in message.content if block.type == "text")


print(json.dumps({"whole": list(turns(whole)), "streamed": list(turns(streamed))}))
