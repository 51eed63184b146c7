"""A conversation of several turns through the official client, at temperature 0. Prints the answers as a JSON array.

usage: turns.py BASE_URL MODEL QUESTION...
"""

import json
import sys

import openai

base_url, model, *questions = sys.argv[1:]
client = openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0, timeout=120)
messages, answers = [{"role": "system", "content": "Answer in one sentence."}], []
for question in questions:
    messages.append({"role": "user", "content": question})
    with client.chat.completions.stream(model=model, messages=messages, temperature=0, max_tokens=24) as stream:
        answer = stream.until_done().get_final_completion().choices[0].message.content
    messages.append({"role": "assistant", "content": answer})
    answers.append(answer)
print(json.dumps(answers))
