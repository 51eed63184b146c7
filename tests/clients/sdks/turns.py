"""A conversation of several turns at temperature 0 through one of the SDKs. Prints the answers as a JSON array.

usage: turns.py SDK BASE_URL MODEL QUESTION...
"""

import json
import sys

sdk, base_url, model, *questions = sys.argv[1:]
options = {"api_key": "unused", "max_retries": 0, "timeout": 120, "temperature": 0, "max_tokens": 24}
SYSTEM = "Answer in one sentence."


def langchain():
    from langchain_core.messages import HumanMessage, SystemMessage
    from langchain_openai import ChatOpenAI

    llm, messages = ChatOpenAI(model=model, base_url=base_url + "/v1", **options), [SystemMessage(SYSTEM)]
    for question in questions:
        messages.append(HumanMessage(question))
        whole = None
        for part in llm.stream(messages):
            whole = part if whole is None else whole + part
        messages.append(whole)
        yield whole.content


def llamaindex():
    from llama_index.core.chat_engine import SimpleChatEngine
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(model=model, api_base=base_url + "/v1", is_chat_model=True, context_window=2048, **options)
    engine = SimpleChatEngine.from_defaults(llm=llm, system_prompt=SYSTEM)
    for question in questions:
        yield "".join(engine.stream_chat(question).response_gen)


def instructor():
    import instructor as library
    import openai

    # Without a form to fill in it passes the conversation on.
    client = library.from_openai(openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0, timeout=120))
    messages = [{"role": "system", "content": SYSTEM}]
    for question in questions:
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(
            model=model, messages=messages, response_model=None, temperature=0, max_tokens=24).choices[0].message.content
        messages.append({"role": "assistant", "content": answer})
        yield answer


print(json.dumps(list({"langchain": langchain, "llamaindex": llamaindex, "instructor": instructor}[sdk]())))
