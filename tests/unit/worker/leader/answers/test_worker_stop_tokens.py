"""`stop_token_ids` and `min_tokens` through a leader with the null engine."""

import pytest

from services.worker.null.engine import TEXT
from shared.messages import Done
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, finish_of, text_of, tokens_of

PROMPT = "x" * 4  # the answer goes on at the fifth letter of the null engine's text


async def test_a_stop_token_ends_the_answer_and_is_not_text(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        frames = await kit.run(chat("r", prompt=PROMPT, sampling={"stop_token_ids": [ord("k"), ord("z")]}))
        assert text_of(frames) == "quic" == TEXT[4:8]
        assert tokens_of(frames) == [*b"quick"]
        assert finish_of(frames) == "stop"
        done = frames[-1]
        assert isinstance(done, Done)
        assert done.usage.completion_tokens == 5
        await kit.all_free()


async def test_no_token_ends_the_answer_before_min_tokens(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        sampling = {"stop_token_ids": [ord("k"), ord("o")], "min_tokens": 9}
        tokens = tokens_of(await kit.run(chat("r", prompt=PROMPT, sampling=sampling)))
        assert bytes(tokens[:4]) == b"quic"
        assert not {ord("k"), ord("o")} & set(tokens[:-1])
        assert (len(tokens) > 9, tokens[-1]) == (True, ord("o"))


@pytest.mark.parametrize(
    ("sampling", "param"),
    [({"min_tokens": 17, "max_tokens": 16}, "min_tokens"), ({"stop_token_ids": [257]}, "stop_token_ids")],
)
async def test_what_cannot_be_is_refused(
    memory_bus: MemoryBus, sampling: dict[str, object], param: str
) -> None:
    async with Kit(memory_bus) as kit:
        failed = await kit.failure(chat("r", prompt=PROMPT, sampling=sampling))
        assert (failed.code, failed.data["param"]) == ("invalid_request", param)
