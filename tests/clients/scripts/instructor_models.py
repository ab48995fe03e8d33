"""instructor: typed answers by its modes, and streamed parts."""

import instructor
from cases import API, MODEL, run_cases
from openai import OpenAI
from pydantic import BaseModel

ASKED = [{"role": "user", "content": "An apple, sweet and red."}]


class Fruit(BaseModel):
    """What is asked for."""

    sweet: bool
    colour: str


def client(mode):
    return instructor.from_openai(OpenAI(base_url=API, max_retries=0), mode=mode)


def ask(mode, wanted=Fruit):
    return client(mode).chat.completions.create(
        model=MODEL, messages=ASKED, response_model=wanted, max_tokens=200, temperature=0, max_retries=0
    )


def tools():
    assert isinstance(ask(instructor.Mode.TOOLS), Fruit)


def strict_tools():
    assert isinstance(ask(instructor.Mode.TOOLS_STRICT), Fruit)


def json_schema():
    assert isinstance(ask(instructor.Mode.JSON_SCHEMA), Fruit)


def partial_objects():
    parts = client(instructor.Mode.TOOLS).chat.completions.create_partial(
        model=MODEL, messages=ASKED, response_model=Fruit, max_tokens=200, temperature=0
    )
    assert list(parts)[-1].colour is not None


def responses_tools():
    made = instructor.from_openai(OpenAI(base_url=API, max_retries=0), mode=instructor.Mode.RESPONSES_TOOLS)
    found = made.responses.create(
        model=MODEL, input="An apple.", response_model=Fruit, max_output_tokens=200, temperature=0
    )
    assert isinstance(found, Fruit)


run_cases(tools, strict_tools, json_schema, partial_objects, responses_tools)
