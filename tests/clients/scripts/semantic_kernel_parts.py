"""Semantic Kernel: answers, streams, functions that the model calls, a schema, and embeddings."""

import json

from cases import API, MODEL, QUESTION, run_cases
from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
    OpenAITextEmbedding,
)
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function

CALLED = []


class Fruit(BaseModel):
    """What typed answers are."""

    sweet: bool


class Shop:
    """A plugin."""

    @kernel_function(description="The price of a fruit.")
    def price(self, fruit: str) -> str:
        CALLED.append(fruit)
        return "two"


def service():
    return OpenAIChatCompletion(
        ai_model_id=MODEL, async_client=AsyncOpenAI(base_url=API, max_retries=0), service_id="s"
    )


def asked(text=QUESTION):
    history = ChatHistory(system_message="Be short.")
    history.add_user_message(text)
    return history


def settings(**more):
    return OpenAIChatPromptExecutionSettings(max_tokens=40, temperature=0, **more)


async def answers():
    found = await service().get_chat_message_content(asked(), settings())
    assert str(found)
    assert found.metadata["usage"].completion_tokens


async def streams():
    parts = [
        str(part[0]) async for part in service().get_streaming_chat_message_contents(asked(), settings())
    ]
    assert "".join(parts)


async def functions():
    kernel = Kernel()
    kernel.add_plugin(Shop(), "shop")
    chosen = settings(function_choice_behavior=FunctionChoiceBehavior.Required(auto_invoke=True))
    chosen.max_tokens = 200
    found = await service().get_chat_message_content(asked("The price of an apple?"), chosen, kernel=kernel)
    assert CALLED
    assert found is not None


async def schemas():
    chosen = settings(response_format=Fruit)
    found = await service().get_chat_message_content(asked("An apple."), chosen)
    assert set(json.loads(str(found))) == {"sweet"}


async def embeddings():
    made = OpenAITextEmbedding(ai_model_id=MODEL, async_client=AsyncOpenAI(base_url=API, max_retries=0))
    found = await made.generate_embeddings(["An apple.", "A train."])
    assert found.shape[0] == 2


run_cases(answers, streams, functions, schemas, embeddings)
