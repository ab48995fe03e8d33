"""LiteLLM: completions, streams, tools, schemas, embeddings, responses, and Anthropic's API."""

import json

import litellm
from cases import API, MODEL, QUESTION, URL, run_cases

OPENAI = {"model": f"openai/{MODEL}", "api_base": API, "api_key": "none", "num_retries": 0}
ASKED = [{"role": "user", "content": QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"sweet": {"type": "boolean"}},
    "required": ["sweet"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "judge", "description": "Judges a fruit.", "parameters": SCHEMA},
}


def answers():
    found = litellm.completion(**OPENAI, messages=ASKED, max_tokens=40)
    assert found.choices[0].message.content
    assert found.usage.completion_tokens


def streams():
    parts = litellm.completion(
        **OPENAI, messages=ASKED, max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices)


def tools():
    for choice in ("required", {"type": "function", "function": {"name": "judge"}}):
        found = litellm.completion(**OPENAI, messages=ASKED, tools=[TOOL], tool_choice=choice, max_tokens=200)
        assert "sweet" in json.loads(found.choices[0].message.tool_calls[0].function.arguments)


def schemas():
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "schema": SCHEMA, "strict": True}}
    found = litellm.completion(**OPENAI, messages=ASKED, response_format=form, max_tokens=200)
    assert set(json.loads(found.choices[0].message.content)) == {"sweet"}


def text_completions():
    found = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}",
        api_base=API,
        api_key="none",
        prompt="An apple is",
        max_tokens=8,
    )
    assert found.choices[0].text


def embeddings():
    found = litellm.embedding(**OPENAI, input=["An apple.", "A train."])
    assert len(found.data) == 2


def responses():
    found = litellm.responses(**OPENAI, input=QUESTION, max_output_tokens=40)
    assert found.output


def anthropic_messages():
    found = litellm.completion(
        model=f"anthropic/{MODEL}", api_base=URL, api_key="none", messages=ASKED, max_tokens=40
    )
    assert found.choices[0].message.content


run_cases(answers, streams, tools, schemas, text_completions, embeddings, responses, anthropic_messages)
