"""A leader with real ranks and the demo model: an answer under a schema depends on the request only."""

import functools
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.worker.model_files.load_model import load_model
from services.worker.orchestrator.failure_recovery_manager import RestartPauses
from services.worker.orchestrator.rank_engine import RankEngine
from shared.codec import pack_tokens
from shared.messages import AnyFrame, Done, Failed, GenerateRequest, Tokens
from tests.kits.engine.rank_options import rank_options
from tests.kits.memory_bus import MemoryBus
from tests.kits.schemas.schema_case import validator
from tests.kits.worker.leader import Kit, chat, finish_of, text_of, tokens_of
from tests.kits.worker.options import scheduler_limits

DEMO = Path(__file__).parents[3] / "models" / "demo"
N = 4
SCHEMA = {
    "type": "object",
    "properties": {
        "customer_name": {"type": "string", "maxLength": 12},
        "shipping_address": {
            "type": "object",
            "properties": {"street_number": {"type": "integer", "minimum": 1, "maximum": 99}},
            "required": ["street_number"],
            "additionalProperties": False,
        },
        "payment_state": {"enum": ["pending", "completed", "cancelled"]},
        "line_items": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "boolean"}},
    },
    "required": ["customer_name", "shipping_address", "payment_state", "line_items"],
    "additionalProperties": False,
}


def ask(name: str, *, n: int = N, before: list[list[int]] | None = None, **sampling: Any) -> GenerateRequest:
    """A request, or its second attempt for a caller that has some tokens."""
    fields: dict[str, Any] = {}
    if before is not None:
        packed = [pack_tokens(tokens) for tokens in before]
        fields = {"resume": {"token_ids": packed, "next_seq": 9}, "attempt": 1}
    return chat(
        name,
        "An order, please.",
        sampling={"max_tokens": 200, "n": n, "seed": 3, "temperature": 1.0, **sampling},
        structured={"kind": "json_schema", "definition": json.dumps(SCHEMA)},
        **fields,
    )


def every(frames: list[AnyFrame]) -> list[list[int]]:
    return [tokens_of(frames, choice) for choice in range(N)]


@pytest.fixture
async def kit(memory_bus: MemoryBus) -> AsyncIterator[Kit]:
    engine = RankEngine(rank_options(model=DEMO, tensor_parallel=2, threads=1, kv_cache_tokens=4096))
    async with Kit(
        memory_bus,
        engine,
        model=load_model(DEMO, "demo"),
        steps=scheduler_limits(64, 16, 64),
        back_off=RestartPauses(first_s=0.05),
    ) as kit:
        yield kit


async def test_every_choice_is_valid_and_the_same_however_it_is_made(kit: Kit) -> None:
    frames = await kit.run(ask("whole"))
    whole = every(frames)
    for choice in range(N):
        assert finish_of(frames, choice) == "stop"
        assert validator(SCHEMA).is_valid(json.loads(text_of(frames, choice)))
    assert len({tuple(tokens) for tokens in whole}) == N
    done = frames[-1]
    assert isinstance(done, Done)
    assert done.usage.completion_tokens == sum(map(len, whole))

    scored = await kit.run(ask("scored", logprobs=1))
    assert every(scored) == whole
    deltas = [delta for frame in scored if isinstance(frame, Tokens) for delta in frame.deltas]
    assert sum(len(delta.logprobs) for delta in deltas) == sum(map(len, whole))
    assert len(deltas) < sum(map(len, whole))  # a run comes whole also where each token of it is sampled

    for number, frames_of in enumerate((frames, scored)):
        borders = [list[int]() for _ in range(N)]
        for frame in frames_of:
            if not isinstance(frame, Tokens):
                continue
            for delta in frame.deltas:
                borders[delta.choice] += [len(delta.token_ids) // 4]
            at = [sum(lengths) for lengths in borders]
            name = f"from{number}-{frame.seq}"
            before = [tokens[:end] for tokens, end in zip(whole, at, strict=True)]
            rest = every(await kit.run(ask(name, before=before)))
            assert [a + b for a, b in zip(before, rest, strict=True)] == whole, at
    await kit.all_free()


async def test_answers_in_company_with_little_memory_are_the_same(kit: Kit) -> None:
    alone = [every(await kit.run(ask(f"alone{seed}", seed=seed))) for seed in range(3)]
    assert kit.leader.parts.engine.scheduler is not None
    blocks = kit.leader.parts.engine.scheduler.blocks
    held = blocks.hold(10**9, [bytes([1, i % 256, i // 256]) for i in range(blocks.num_free - 24)])
    assert held == 0
    for seed in range(3):
        await kit.ask(ask(f"r{seed}", seed=seed))
    for seed in range(3):
        assert every(await kit.end_of(f"r{seed}")) == alone[seed]
    assert kit.metric("num_preemptions_total") > 0
    blocks.release(10**9)


async def test_a_stop_string_inside_forced_tokens_ends_the_answer_there(kit: Kit) -> None:
    frames = await kit.run(ask("r", n=1, stop=["ipping_addr"]))
    text, tokens = text_of(frames), tokens_of(frames)
    assert text.endswith('"sh')
    assert finish_of(frames) == "stop"
    done = frames[-1]
    assert isinstance(done, Done)
    assert done.usage.completion_tokens == len(tokens)
    first = await kit.run(ask("first", n=1, stop=['{"']))
    assert (text_of(first), finish_of(first)) == ("", "stop")
    await kit.all_free()


async def test_max_tokens_cuts_inside_forced_tokens(kit: Kit) -> None:
    whole = tokens_of(await kit.run(ask("whole", n=1)))
    for most in (1, 2, 3, *range(8, 24)):
        for logprobs in (-1, 0):
            frames = await kit.run(ask(f"r{most}-{logprobs + 1}", n=1, max_tokens=most, logprobs=logprobs))
            assert tokens_of(frames) == whole[:most]
            assert finish_of(frames) == "length"


async def test_a_rank_that_dies_inside_an_answer_changes_no_token(kit: Kit) -> None:
    kit.expected_errors = {"the engine failed"}
    whole = every(await kit.run(ask("whole", logprobs=0)))
    for number, least in enumerate((2, 6, 10)):
        name = f"r{number}"
        await kit.ask(ask(name, logprobs=0))
        await kit.until(functools.partial(_has_frames, kit, name, least))
        pid = kit.engine.status()[number % 2]["pid"]
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)
        frames = await kit.end_of(name)
        assert isinstance(frames[-1], Failed)
        assert frames[-1].resumable
        before = every(frames)
        await kit.until(lambda: kit.leader.load().total_blocks > 0)
        kit.frames.clear()
        rest = every(await kit.run(ask(name, before=before)))
        assert [a + b for a, b in zip(before, rest, strict=True)] == whole


def _has_frames(kit: Kit, request_id: str, least: int) -> bool:
    return len(kit.frames[request_id]) >= least
