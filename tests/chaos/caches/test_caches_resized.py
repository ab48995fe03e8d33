"""A group's KV cache shrinks and grows again and again under load, by messages on the bus: no token changes.

`make chaos` does it 100 times. It prints what tokens took in windows with and without changes, in turns.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from cli.models.store import models_dir
from services.worker.model_files.load_model import load_model
from services.worker.orchestrator.rank_engine import RankEngine
from shared import codec, subjects
from shared.host.thread_counts import read_schedstat, thread_ids
from shared.messages import Done, GenerateRequest, KVLimited, LimitKV, Tokens
from tests.conftest import DEMO
from tests.kits.chaos.scale import full, scaled
from tests.kits.engine.rank_options import rank_options
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.leader import Kit, chat, tokens_of
from tests.kits.worker.options import scheduler_limits

pytestmark = pytest.mark.timeout(scaled(300, 3600))
ROUNDS = scaled(6, 100)
WINDOW_TOKENS = 160  # twenty steps of eight streams
STREAMS, PROMPTS, MAX_TOKENS = 8, 40, 120
CHECKED = 3  # prompts that the plain path computes as well
POOL_TOKENS = 12_288
PLACES = ("the sea", "a forest", "my street", "the old mill", "a station")
SMOLLM2 = "smollm2-135m.gguf"


def request(number: int, name: str) -> GenerateRequest:
    """Prompts begin alike, so that cached prefixes are found and lost."""
    place = PLACES[number % len(PLACES)]
    text = f"I walked along {place} and saw many things there. " * 6 + f"I counted {number} of them, and"
    sampling = {"max_tokens": MAX_TOKENS, "temperature": 0.0, "ignore_eos": True}
    return chat(name, prompt=text, sampling=sampling)


@asynccontextmanager
async def leader(bus: MemoryBus, model: Path, kernels: str = "auto") -> AsyncIterator[Kit]:
    options = rank_options(
        model=model, threads=1, kv_cache_tokens=POOL_TOKENS, precision="fp32", kernels=kernels
    )
    steps = scheduler_limits(256, STREAMS, 64)
    async with Kit(bus, RankEngine(options), model=load_model(model, "demo"), steps=steps) as kit:
        yield kit


class Spent(NamedTuple):
    """Seconds for a token: of the clock, and of CPU time of the rank and of this process."""

    wall_s: float
    rank_s: float
    leader_s: float


class Load:
    """Keeps so many streams running, whose tokens it checks, until it is ended."""

    def __init__(self, kit: Kit, expected: list[list[int]]) -> None:
        self.served: Counter[int] = Counter()
        self._kit = kit
        self._expected = expected
        self._next = 0
        self._ends = False
        self._tasks = [asyncio.create_task(self._run()) for _ in range(STREAMS)]

    async def _run(self) -> None:
        while not self._ends:
            self._next += 1
            number, name = self._next % PROMPTS, f"r{self._next}"
            frames = await self._kit.run(request(number, name))
            assert isinstance(frames[-1], Done)
            assert tokens_of(frames) == self._expected[number]
            self.served[number] += 1
            del self._kit.frames[name]

    def num_tokens(self) -> int:
        """Tokens so far."""
        return MAX_TOKENS * self.served.total() + sum(
            len(codec.unpack_tokens(delta.token_ids))
            for frames in self._kit.frames.values()
            for frame in frames
            if isinstance(frame, Tokens)
            for delta in frame.deltas
        )

    async def window(self) -> Spent:
        """Returns what tokens take, until there are enough of them."""
        first, began = self.num_tokens(), self._spent()
        while (came := self.num_tokens() - first) < WINDOW_TOKENS:
            assert not any(task.done() for task in self._tasks), [task for task in self._tasks if task.done()]
            await asyncio.sleep(0.02)
        wall_s, rank_s, leader_s = self._spent()
        return Spent(
            (wall_s - began.wall_s) / came, (rank_s - began.rank_s) / came, (leader_s - began.leader_s) / came
        )

    def _spent(self) -> Spent:
        info = self._kit.leader.parts.engine.info
        assert info is not None
        pid = info.ranks[0].pid
        rank_ns = sum(read_schedstat(pid, tid)[0] for tid in thread_ids(pid))  # finer than the clock's steps
        return Spent(time.perf_counter(), rank_ns / 1e9, time.process_time())

    async def end(self) -> None:
        self._ends = True
        await asyncio.gather(*self._tasks)


async def limit(kit: Kit, limit_bytes: int) -> KVLimited:
    asked = codec.encode(LimitKV(group=kit.group, limit_bytes=limit_bytes))
    answer = await kit.bus.request(subjects.limit_kv(kit.group), asked, timeout_s=PATIENCE_S)
    return codec.decode_reply(answer.data, KVLimited)


async def answers(kit: Kit, count: int, name: str) -> list[list[int]]:
    asked = (kit.run(request(number, f"{name}{number}")) for number in range(count))
    return [tokens_of(frames) for frames in await asyncio.gather(*asked)]


@pytest.mark.parametrize("name", ["demo", *([SMOLLM2] if full else [])])
async def test_a_cache_that_shrinks_and_grows_under_load_changes_no_token(
    memory_bus: MemoryBus, name: str
) -> None:
    model = DEMO if name == "demo" else models_dir() / name
    if not model.exists():
        pytest.skip("`ryz models pull smollm2-135m` brings the model")
    async with leader(memory_bus, model, kernels="plain") as kit:
        oracle = await answers(kit, CHECKED, "oracle")
    async with leader(memory_bus, model) as kit:
        expected = await answers(kit, PROMPTS, "unchanged")
        assert expected[:CHECKED] == oracle
        kit.frames.clear()
        load = Load(kit, expected)
        await load.window()
        without, during, smaller = list[Spent](), list[Spent](), list[KVLimited]()
        for _ in range(ROUNDS):
            without.append(await load.window())
            smaller.append(await limit(kit, 1))
            assert smaller[-1].needed_bytes <= smaller[-1].limit_bytes < smaller[-1].most_bytes
            during.append(await load.window())
            larger = await limit(kit, 0)
            assert larger.limit_bytes == larger.most_bytes
        await load.end()
        print(f"{name}: {ROUNDS} falls and rises, {sum(load.served.values())} streams")
        for field in Spent._fields:
            was, is_now = (sum(getattr(one, field) for one in spent) for spent in (without, during))
            pairs = [
                getattr(b, field) / getattr(a, field)
                for a, b in zip(without, during, strict=True)
                if getattr(a, field)
            ]
            ratio = f"{is_now / was:.3f} of it with changes (median of pairs {statistics.median(pairs):.3f})"
            print(f"{field} of a token: {1000 * was / ROUNDS:.3f} ms, {ratio}")
        print(f"preemptions: {kit.metric('num_preemptions_total'):.0f}")
        assert len(load.served) == PROMPTS or not full
        await kit.all_free()
