"""The same as ../python/turns.py with one of the SDKs, whose names are the functions here.

usage: turns.py SDK BASE_URL MODEL TOKENS SYSTEM QUESTION...
"""

import json
import sys

sdk, base_url, model, tokens, system, *questions = sys.argv[1:]
options = {"api_key": "unused", "max_retries": 0, "timeout": 120, "temperature": 0, "max_tokens": int(tokens)}


def langchain(stream):
    from langchain_core.messages import HumanMessage, SystemMessage
    from langchain_openai import ChatOpenAI

    llm, messages = ChatOpenAI(model=model, base_url=base_url + "/v1", **options), [SystemMessage(system)]
    for question in questions:
        messages.append(HumanMessage(question))
        answer = None
        if stream:
            for part in llm.stream(messages):
                answer = part if answer is None else answer + part
        else:
            answer = llm.invoke(messages)
        messages.append(answer)
        yield answer.content


def llamaindex(stream):
    from llama_index.core.chat_engine import SimpleChatEngine
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(model=model, api_base=base_url + "/v1", is_chat_model=True, context_window=2048, **options)
    engine = SimpleChatEngine.from_defaults(llm=llm, system_prompt=system)
    for question in questions:
        yield "".join(engine.stream_chat(question).response_gen) if stream else engine.chat(question).response


def instructor(stream):
    import instructor as library
    import openai

    # Without a form to fill in it passes the conversation on.
    client = library.from_openai(openai.OpenAI(base_url=base_url + "/v1", api_key="unused", max_retries=0, timeout=120))
    messages = [{"role": "system", "content": system}]
    for question in questions:
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(
            model=model, messages=messages, response_model=None, temperature=0, max_tokens=int(tokens), stream=stream)
        if stream:
            answer = "".join(choice.delta.content or "" for chunk in answer for choice in chunk.choices)
        else:
            answer = answer.choices[0].message.content
        messages.append({"role": "assistant", "content": answer})
        yield answer


turns = {"langchain": langchain, "llamaindex": llamaindex, "instructor": instructor}[sdk]
print(json.dumps({"whole": list(turns(False)), "streamed": list(turns(True))}))
