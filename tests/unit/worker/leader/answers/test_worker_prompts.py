"""What a request asks of its prompt: embedding, log probabilities, text; also after losses."""

from collections.abc import Sequence
from typing import Any

import pytest

from services.worker.null.engine import TEXT
from services.worker.null.prompts import HIDDEN_SIZE, LOGPROB, null_embedding
from shared.codec import pack_tokens
from shared.messages import (
    AnyFrame,
    Delta,
    Done,
    EmbeddingOptions,
    ResumePoint,
    SessionRef,
    TokenLogprob,
    Tokens,
)
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, finish_of, null_engine, text_of, tokens_of
from tests.kits.worker.options import scheduler_limits

WORDS = "Grüße, und so weiter. " * 20


def deltas_of(frames: Sequence[AnyFrame]) -> list[Delta]:
    return [delta for frame in frames if isinstance(frame, Tokens) for delta in frame.deltas]


def scores_of(frames: Sequence[AnyFrame]) -> list[TokenLogprob]:
    return [score for delta in deltas_of(frames) for score in delta.prompt_logprobs]


def prompt_text_of(frames: Sequence[AnyFrame]) -> str:
    return "".join(delta.prompt_text for delta in deltas_of(frames))


@pytest.mark.parametrize("pooling", ["last", "mean"])
async def test_an_embedding_is_one_frame_and_no_token(kit: Kit, pooling: str) -> None:
    wanted = null_embedding(list(WORDS.encode()), EmbeddingOptions(pooling=pooling, dimensions=9))  # type: ignore[arg-type]
    for name in "ab":
        frames = await kit.run(chat(name, prompt=WORDS, embedding={"pooling": pooling, "dimensions": 9}))
        (delta,), last = deltas_of(frames), frames[-1]
        assert (delta.embedding, delta.finish_reason, delta.token_ids) == (wanted, "stop", b"")
        assert isinstance(last, Done)
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(WORDS.encode()), 0)
        found = last.usage.cached_tokens
        assert (found > 0) == (name == "b" and pooling == "last"), "the mean needs each token"


async def test_a_prompt_may_fill_the_context_when_nothing_follows(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(blocks=128)) as kit:
        frames = await kit.run(chat("a", prompt="x" * 2048, embedding={}))
        assert len(deltas_of(frames)[0].embedding) == 4 * HIDDEN_SIZE
        failed = await kit.failure(chat("b", prompt="x" * 2049, embedding={}))
        assert failed.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"embedding": {"dimensions": HIDDEN_SIZE + 1}}, "dimensions"),
        ({"embedding": {}, "sampling": {"n": 2}}, "n"),
        ({"embedding": {}, "echo": True}, "echo"),
        ({"embedding": {}, "sampling": {"prompt_logprobs": 0}}, "prompt_logprobs"),
        ({"prompt_only": True, "sampling": {"n": 2}}, "n"),
        ({"embedding": {}, "session": SessionRef(session_id="s")}, "session"),
        ({"prompt": "a", "sampling": {"prompt_logprobs": 0}, "resume": (2, 0)}, "resume"),
    ],
)
async def test_contradictions_name_the_field(kit: Kit, fields: dict[str, Any], param: str) -> None:
    if "resume" in fields:
        fields = fields | {"resume": ResumePoint(token_ids=[b""], next_seq=1, prompt_logprobs=2)}
    failed = await kit.failure(chat("a", **fields))
    assert (failed.code, failed.data["param"]) == ("invalid_request", param)


@pytest.mark.parametrize("count", [0, 2])
async def test_prompts_are_scored_and_answered(kit: Kit, count: int) -> None:
    plain = await kit.run(chat("a", prompt=WORDS))
    frames = await kit.run(chat("b", prompt=WORDS, sampling={"prompt_logprobs": count, "n": 2}))
    scores = scores_of(frames)
    assert [score.token_id for score in scores] == list(WORDS.encode())
    assert [score.logprob for score in scores] == [0.0] + [LOGPROB] * (len(scores) - 1)
    assert [len(score.top) for score in scores] == [0] + [min(count, 1)] * (len(scores) - 1)
    assert text_of(frames) == text_of(frames, 1) == text_of(plain)
    kinds = ["scores" if delta.prompt_logprobs else "tokens" for delta in deltas_of(frames)]
    assert kinds == sorted(kinds), "no token of any choice comes before the prompt"
    last = frames[-1]
    assert isinstance(last, Done)
    assert last.usage.cached_tokens == 0


async def test_a_prompt_alone_is_echoed_and_scored(kit: Kit) -> None:
    ids = pack_tokens(list(WORDS.encode()))
    fields: dict[str, Any] = {"prompt_only": True, "echo": True, "sampling": {"prompt_logprobs": 0}}
    for name, prompt in (("a", {"prompt": WORDS}), ("b", {"prompt_token_ids": ids})):
        frames = await kit.run(chat(name, **prompt, **fields))
        assert prompt_text_of(frames) == WORDS
        assert len(scores_of(frames)) == len(WORDS.encode())
        assert (tokens_of(frames), finish_of(frames)) == ([], "length")
    one = await kit.run(chat("c", prompt="x", **fields))
    assert [score.logprob for score in scores_of(one)] == [0.0], "nothing comes before a first token"


async def test_prompts_are_cut_at_the_front(kit: Kit) -> None:
    fields: dict[str, Any] = {"truncate_prompt_tokens": 7, "echo": True}
    frames = await kit.run(chat("a", prompt="x" * 9000 + "the end", **fields))
    last = frames[-1]
    assert isinstance(last, Done)
    assert (prompt_text_of(frames), last.usage.prompt_tokens) == ("the end", 7)
    assert text_of(frames) == TEXT[7:23]


async def test_scores_survive_preemption_and_are_sent_once(memory_bus: MemoryBus) -> None:
    engine = null_engine(blocks=32, delay_s=0.004)
    steps = scheduler_limits(16, 8, 16)
    async with Kit(memory_bus, engine, steps=steps) as kit:
        names = [f"low{i}" for i in range(3)]
        for name in names:
            sampling = {"prompt_logprobs": 0, "max_tokens": 8}
            await kit.ask(chat(name, prompt=WORDS[:200], sampling=sampling, priority=-1))
        await kit.until(lambda: len(scores_of(kit.frames["low0"])) > 30)
        for i in range(3):
            await kit.run(chat(f"high{i}", prompt=str(i) * 250, priority=1, sampling={"max_tokens": 2}))
        for name in names:
            scores = scores_of(await kit.end_of(name))
            assert [score.token_id for score in scores] == list(WORDS[:200].encode())
        assert kit.metric("num_preemptions_total") > 0
        await kit.all_free()


async def test_another_group_goes_on_where_the_caller_is(kit: Kit) -> None:
    fields: dict[str, Any] = {"prompt": WORDS, "echo": True}
    whole = await kit.run(chat("a", sampling={"prompt_logprobs": 1}, **fields))
    first = ord(WORDS[0])
    for scores, characters, tokens in ((0, 3, []), (100, 10**6, []), (len(WORDS.encode()), 440, [first])):
        point = ResumePoint(
            token_ids=[pack_tokens(tokens)], next_seq=5, prompt_logprobs=scores, prompt_text=characters
        )
        name = f"b{scores}"
        frames = await kit.run(chat(name, sampling={"prompt_logprobs": 1}, attempt=1, resume=point, **fields))
        assert frames[0].seq == 5
        assert scores_of(frames) == scores_of(whole)[scores:]
        assert prompt_text_of(frames) == WORDS[characters:]
        assert len(tokens_of(frames)) == 16 - len(tokens)
