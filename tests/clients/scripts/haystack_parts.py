"""Haystack: its generators for chat and text, tools, a schema, streams, and both embedders."""

import json

from cases import API, MODEL, QUESTION, run_cases
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

KEY = Secret.from_token("none")
SHORT = {"max_tokens": 40, "temperature": 0}
LONG = {"max_tokens": 200, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"sweet": {"type": "boolean"}},
    "required": ["sweet"],
    "additionalProperties": False,
}


def generator(**more):
    return OpenAIChatGenerator(api_key=KEY, model=MODEL, api_base_url=API, max_retries=0, **more)


def answers():
    found = generator(generation_kwargs=SHORT).run([ChatMessage.from_user(QUESTION)])
    assert found["replies"][0].text
    assert found["replies"][0].meta["usage"]["completion_tokens"]


def streams():
    parts = []
    made = generator(generation_kwargs=SHORT, streaming_callback=lambda chunk: parts.append(chunk.content))
    found = made.run([ChatMessage.from_user(QUESTION)])
    assert "".join(parts) == found["replies"][0].text


def tools():
    parameters = {"type": "object", "properties": {"fruit": {"type": "string"}}, "required": ["fruit"]}
    tool = Tool("price", "The price of a fruit.", parameters, lambda fruit: fruit)
    made = generator(generation_kwargs={**LONG, "tool_choice": "required"}, tools=[tool])
    asked = [ChatMessage.from_user("The price of an apple?")]
    reply = made.run(asked)["replies"][0]
    assert "fruit" in reply.tool_calls[0].arguments
    answered = ChatMessage.from_tool("two", origin=reply.tool_calls[0])
    assert generator(generation_kwargs=SHORT).run([*asked, reply, answered])["replies"][0].text


def schemas():
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "schema": SCHEMA, "strict": True}}
    found = generator(generation_kwargs={**LONG, "response_format": form}).run(
        [ChatMessage.from_user("An apple.")]
    )
    assert set(json.loads(found["replies"][0].text)) == {"sweet"}


def embeddings():
    text = OpenAITextEmbedder(api_key=KEY, model=MODEL, api_base_url=API)
    documents = OpenAIDocumentEmbedder(
        api_key=KEY, model=MODEL, api_base_url=API, progress_bar=False, meta_fields_to_embed=[]
    )
    alone = text.run("An apple.")["embedding"]
    found = documents.run([Document(content="An apple."), Document(content="A train.")])["documents"]
    assert max(abs(a - b) for a, b in zip(alone, found[0].embedding, strict=True)) < 1e-4
    assert found[1].embedding != found[0].embedding


run_cases(answers, streams, tools, schemas, embeddings)
