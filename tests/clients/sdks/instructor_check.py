"""Runs Instructor, in each of its modes, against a server whose worker plays the scripts of sdks_test.go. Prints one JSON
line per check.

usage: instructor_check.py BASE_URL
"""

import sys
from typing import Iterable

import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel

from reports import report

base_url = sys.argv[1] + "/v1"
client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=20)
QUESTION = [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "Who?"}]
ADA = {"name": "Ada", "age": 36}


class Person(BaseModel):
    """Somebody."""
    name: str
    age: int


class GetWeather(BaseModel):
    """Weather of a city."""
    city: str


def patched(mode):
    return instructor.from_openai(client, mode=mode)


def ask(mode, model="json", kind=Person):
    return patched(mode).chat.completions.create(model=model, messages=QUESTION, response_model=kind, max_retries=0)


def json_schema():
    assert ask(instructor.Mode.JSON_SCHEMA).model_dump() == ADA


def json_mode():
    assert ask(instructor.Mode.JSON).model_dump() == ADA


def markdown_json():
    assert patched(instructor.Mode.MD_JSON).chat.completions.create(
        model="json", messages=QUESTION, response_model=Person, max_retries=0).model_dump() == ADA


def tools():
    assert ask(instructor.Mode.TOOLS, "forced", GetWeather).city == "Oslo"


def tools_strict():
    assert ask(instructor.Mode.TOOLS_STRICT, "forced", GetWeather).city == "Oslo"


def parallel_tools():
    class get_weather(BaseModel):
        """Weather of a city."""
        city: str

    class get_time(BaseModel):
        """The time."""

    found = patched(instructor.Mode.PARALLEL_TOOLS).chat.completions.create(
        model="tools", messages=QUESTION[1:], response_model=Iterable[get_weather | get_time])
    found = list(found)
    assert [type(f).__name__ for f in found] == ["get_weather", "get_weather", "get_time"], found
    assert [f.city for f in found[:2]] == ["Oslo", 'Zürich "HB"'], found


def partial_stream():
    parts = list(patched(instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
        model="json", messages=QUESTION, response_model=Person))
    assert len(parts) > 2 and parts[-1].model_dump() == ADA, parts


def with_completion():
    person, raw = patched(instructor.Mode.JSON).chat.completions.create_with_completion(
        model="json", messages=QUESTION, response_model=Person)
    assert person.model_dump() == ADA and raw.choices[0].finish_reason == "stop", raw


def validation_fails():
    """What doesn't keep the schema is asked for again, with the mistake in the conversation."""
    try:
        patched(instructor.Mode.JSON).chat.completions.create(
            model="chat", messages=QUESTION, response_model=Person, max_retries=1)
    except InstructorRetryException as e:
        assert e.n_attempts == 2, e.n_attempts
        return
    raise AssertionError("a greeting is no person")


def errors():
    for model, kind in (("none", openai.NotFoundError), ("broken", openai.InternalServerError)):
        try:
            ask(instructor.Mode.JSON, model)
        except InstructorRetryException as e:
            assert isinstance(e.__cause__, kind) and "secret" not in str(e), repr(e)
        else:
            raise AssertionError(f"no {kind.__name__}")


def error_in_stream():
    """What came ahead of the failure is no person, and the failure is told."""
    try:
        list(patched(instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
            model="breaks", messages=QUESTION, response_model=Person, max_retries=0))
    except (InstructorRetryException, openai.APIError) as e:
        assert "secret" not in str(e), repr(e)
        return
    raise AssertionError("the end looks like a good one")


def cancel():
    stream = client.chat.completions.create(model="slow", messages=QUESTION, stream=True)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    stream.close()


report(json_schema, json_mode, markdown_json, tools, tools_strict, parallel_tools, partial_stream, with_completion,
       validation_fails, errors, error_in_stream, cancel)
