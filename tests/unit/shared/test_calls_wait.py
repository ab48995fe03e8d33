"""A call waits for a service that is away, and is sent again only while nothing has received it."""

import asyncio

import pytest

from shared.bus import Message, NoResponders, RequestTimedOut
from shared.bus.endpoint import Endpoint, call
from shared.client.calls.token_calls import tokenize
from shared.errors import ModelNotFound, Unavailable
from shared.messages import ListModels, ModelCard, ModelList, Tokenized, TokenizeQuery
from shared.subjects import MODELS
from shared.subjects import tokenize as tokenize_subject
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S


async def test_a_service_that_comes_back_answers(memory_bus: MemoryBus) -> None:
    asked: list[Message] = []

    async def answer(_: ListModels, message: Message) -> ModelList:
        asked.append(message)
        return ModelList(models=[])

    calling = asyncio.create_task(
        call(memory_bus, MODELS, ListModels(), ModelList, timeout_s=PATIENCE_S, wait_s=PATIENCE_S)
    )
    await asyncio.sleep(0.05)
    assert not calling.done()
    await memory_bus.subscribe(MODELS, Endpoint(memory_bus).handler(ListModels, answer))
    assert (await calling).models == []
    assert len(asked) == 1


async def test_the_wait_ends(memory_bus: MemoryBus) -> None:
    for wait_s in (0.0, 0.1):
        began = asyncio.get_running_loop().time()
        with pytest.raises(NoResponders):
            await call(memory_bus, MODELS, ListModels(), ModelList, timeout_s=PATIENCE_S, wait_s=wait_s)
        assert asyncio.get_running_loop().time() - began < PATIENCE_S


async def test_what_was_received_is_not_sent_again(memory_bus: MemoryBus) -> None:
    received: list[Message] = []
    await memory_bus.subscribe(MODELS, received.append)
    with pytest.raises(RequestTimedOut):
        await call(memory_bus, MODELS, ListModels(), ModelList, timeout_s=0.1, wait_s=PATIENCE_S)
    assert len(received) == 1


async def test_tokens_wait_for_a_group_of_a_known_model_only(memory_bus: MemoryBus) -> None:
    card = ModelCard(name="other", context_length=1)

    async def models(_: ListModels, message: Message) -> ModelList:
        return ModelList(models=[card], away=["away"])

    await memory_bus.subscribe(MODELS, Endpoint(memory_bus).handler(ListModels, models))
    with pytest.raises(ModelNotFound, match="served: other"):
        await tokenize(memory_bus, TokenizeQuery(model="nope", prompt="x"), timeout_s=1, wait_s=PATIENCE_S)
    query = TokenizeQuery(model="away", prompt="x")
    with pytest.raises(Unavailable, match="no group of model 'away'"):
        await tokenize(memory_bus, query, timeout_s=1, wait_s=0.1)

    async def tokens(_: TokenizeQuery, message: Message) -> Tokenized:
        return Tokenized(count=0, context_length=1)

    asking = asyncio.create_task(tokenize(memory_bus, query, timeout_s=PATIENCE_S, wait_s=PATIENCE_S))
    await asyncio.sleep(0.05)
    handler = Endpoint(memory_bus).handler(TokenizeQuery, tokens)
    await memory_bus.subscribe(tokenize_subject("away"), handler)
    assert (await asking).token_ids == b""
