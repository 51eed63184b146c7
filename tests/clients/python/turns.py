"""A conversation of several turns through the official client, at temperature 0, in one body each and streamed. Prints
the answers as a JSON object: by mode, in order.

usage: turns.py BASE_URL MODEL TOKENS SYSTEM QUESTION...
"""

import json
import sys

import openai

base_url, model, tokens, system, *questions = sys.argv[1:]
client = openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0, timeout=120)


def whole(**ask):
    return client.chat.completions.create(**ask).choices[0].message.content


def streamed(**ask):
    with client.chat.completions.stream(**ask) as stream:
        return stream.until_done().get_final_completion().choices[0].message.content


def turns(ask):
    messages = [{"role": "system", "content": system}]
    for question in questions:
        messages.append({"role": "user", "content": question})
        answer = ask(model=model, messages=messages, temperature=0, max_tokens=int(tokens))
        messages.append({"role": "assistant", "content": answer})
        yield answer


print(json.dumps({"whole": list(turns(whole)), "streamed": list(turns(streamed))}))
