"""Answers of a leader about tokens: equal to those of a generation, within limits; errors name fields."""

from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
import pytest_asyncio

from shared.client import InferenceClient
from shared.codec import pack_tokens, unpack_tokens
from shared.errors import ContextLengthExceeded, InvalidRequest, Unavailable
from shared.messages import AnyFrame, ChatMessage, Delta, DetokenizeQuery, Done, TokenizeQuery, Tokens
from tests.kits.memory_bus import MemoryBroker, MemoryBus
from tests.kits.worker.leader import Kit, chat

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="naïve ☕")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kit() -> AsyncIterator[Kit]:
    bus = MemoryBus(MemoryBroker())
    async with Kit(bus) as running:
        yield running
    await bus.close()


@pytest_asyncio.fixture(loop_scope="module")
async def client(kit: Kit) -> InferenceClient:
    return InferenceClient(kit.bus)


@pytest.mark.parametrize("filler", ["", "☕" * 600], ids=["inline", "in a thread"])
async def test_the_count_is_that_of_a_generation(kit: Kit, client: InferenceClient, filler: str) -> None:
    said = [*SAID, ChatMessage(role="user", content=filler)]
    prompt = "x" + filler
    tokenized = await client.tokenize(TokenizeQuery(model="demo", messages=said), timeout_s=5)
    done = (await kit.run(chat(f"chat-{len(filler)}", messages=said)))[-1]
    assert isinstance(done, Done)
    assert tokenized.count == done.usage.prompt_tokens == len(unpack_tokens(tokenized.token_ids))
    assert tokenized.context_length == 2048
    tokenized = await client.tokenize(TokenizeQuery(model="demo", prompt=prompt), timeout_s=5)
    done = (await kit.run(chat(f"text-{len(filler)}", prompt=prompt)))[-1]
    assert isinstance(done, Done)
    assert tokenized.count == done.usage.prompt_tokens


async def test_tokens_become_their_text_again(client: InferenceClient) -> None:
    tokenized = await client.tokenize(TokenizeQuery(model="demo", prompt="naïve ☕", texts=True), timeout_s=5)
    assert tokenized.texts[:2] == ["n", "a"]
    assert len(tokenized.texts) == tokenized.count
    back = await client.detokenize(DetokenizeQuery(model="demo", token_ids=tokenized.token_ids), timeout_s=5)
    assert back.text == "naïve ☕"
    many = DetokenizeQuery(model="demo", token_ids=pack_tokens([97] * 5000 + [256]))
    assert (await client.detokenize(many, timeout_s=5)).text == "a" * 5000 + "<|end|>"


async def test_a_conversation_without_the_answers_beginning(client: InferenceClient) -> None:
    query = TokenizeQuery(model="demo", messages=SAID)
    begun = await client.tokenize(query, timeout_s=5)
    bare = msgspec.structs.replace(query, generation_prompt=False, ids=False)
    ended = await client.tokenize(bare, timeout_s=5)
    assert begun.count - ended.count == len("assistant: ")
    assert (ended.token_ids, bytes(unpack_tokens(begun.token_ids)[-11:])) == (b"", b"assistant: ")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        (TokenizeQuery(model="demo"), "messages"),
        (TokenizeQuery(model="demo", messages=SAID, prompt="x"), "prompt"),
        (TokenizeQuery(model="demo", prompt=""), "prompt"),
    ],
)
async def test_errors_name_the_field(client: InferenceClient, query: TokenizeQuery, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await client.tokenize(query, timeout_s=5)
    assert refused.value.data["param"] == param


async def test_what_cannot_be_answered(client: InferenceClient) -> None:
    with pytest.raises(ContextLengthExceeded):
        await client.tokenize(TokenizeQuery(model="demo", prompt="x" * 40_000), timeout_s=5)
    with pytest.raises(InvalidRequest, match="vocabulary ends at 256"):
        await client.detokenize(DetokenizeQuery(model="demo", token_ids=pack_tokens([257])), timeout_s=5)
    with pytest.raises(Unavailable) as refused:
        await client.tokenize(TokenizeQuery(model="other", prompt="x"), timeout_s=5)
    assert refused.value.data["reason"] == "no_router"


@pytest.mark.parametrize("delivery", ["stream", "whole"])
async def test_the_stop_string_is_reported(kit: Kit, delivery: str) -> None:
    free = deltas_of(await kit.run(chat(f"free-{delivery}")))
    text = "".join(delta.text for delta in free)
    stops = ["never seen", text[5:7], text[4:7]]
    cut = deltas_of(await kit.run(chat(f"cut-{delivery}", delivery=delivery, sampling={"stop": stops})))
    assert [delta.stop for delta in cut if delta.finish_reason] == [text[4:7]]
    assert {delta.stop for delta in free} == {""}


def deltas_of(frames: Sequence[AnyFrame]) -> list[Delta]:
    return [delta for frame in frames if isinstance(frame, Tokens) for delta in frame.deltas]
