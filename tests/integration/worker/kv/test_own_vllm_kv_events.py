"""A worker that starts vLLM and publishes its KV events: the whole worker process.

With the stand-in for vLLM, and with vLLM itself where `RYZ_TEST_VLLM_PYTHON` names an interpreter with it.
"""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from shared import codec, subjects
from shared.bus.api import Message
from shared.bus.nats import NatsBus
from shared.client.kv_events import KVEventFollower, block_names
from shared.messages import Done, FrameBatch, Route, Usage, Work
from tests.kits.guests.real_vllm import ARGUMENTS, vllm_python
from tests.kits.guests.vllm_guest import stub_python
from tests.kits.programs.launch import AsyncProgram
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.leader import chat
from tests.kits.worker.process import worker

GROUP = "own-vllm"
START_S = 600.0
DEMO = Path(__file__).parents[4] / "models" / "demo"
EVENTS = "--kv-events-config '{\"enable_kv_cache_events\": true}'"


@asynccontextmanager
async def vllm_worker(nats_url: str, python: str, arguments: str = EVENTS) -> AsyncIterator[AsyncProgram]:
    own = {"ENGINE": "vllm", "VLLM_PYTHON": python, "VLLM_ARGS": arguments, "MODEL": str(DEMO)}
    async with worker(nats_url, GROUP, **own, ENGINE_START_TIMEOUT_S=str(START_S)) as process:
        yield process


class Caller:
    """Sends requests straight to the group, and waits for what they used."""

    def __init__(self, bus: NatsBus) -> None:
        self._bus = bus
        self._sent = 0

    async def usage(self, tenant: str, prompt: list[int]) -> Usage:
        self._sent += 1
        inbox, used = self._bus.new_inbox() + ".f", list[Usage]()

        async def on_frames(message: Message) -> None:
            frames = codec.decode(message.data, FrameBatch).frames
            used.extend(frame.usage for frame in frames if isinstance(frame, Done))

        await self._bus.subscribe(inbox, on_frames)
        packed, sampling = codec.pack_tokens(prompt), {"max_tokens": 2, "ignore_eos": True}
        request = chat(f"r{self._sent}", tenant=tenant, prompt_token_ids=packed, sampling=sampling)
        work = Work(request=codec.encode(request), route=Route(group=GROUP, reason="test"), reply_to=inbox)
        await self._bus.publish(subjects.work(GROUP), codec.encode(work))
        await until(lambda: bool(used))
        return used[0]


async def leading(follower: KVEventFollower, tenant: str, prompt: list[int]) -> int:
    """How many leading tokens of a tenant's prompt a router of others knows at the group."""
    await follower.until_current(PATIENCE_S)
    group = follower.index.groups[GROUP]
    return follower.index.find(block_names(group, prompt, tenant)).get(GROUP, 0) * group.block_tokens


async def finds(follower: KVEventFollower, tenant: str, prompt: list[int], found: int) -> None:
    """Waits until it knows so many: events may come a moment after the answer."""

    async def knows() -> bool:
        return await leading(follower, tenant, prompt) == found

    await until(knows)


async def ready(follower: KVEventFollower, *, other_than: str = "") -> str:
    """Waits until a vLLM is ready; returns the epoch."""

    def has_begun() -> bool:
        group = follower.index.groups.get(GROUP)
        return group is not None and bool(group.fingerprint) and group.epoch != other_than

    await until(has_begun, START_S)
    return follower.index.groups[GROUP].epoch


async def compare(caller: Caller, follower: KVEventFollower) -> list[int]:
    """Asks vLLM for what a router of others expects; returns a prompt of three blocks and five tokens."""
    block = follower.index.groups[GROUP].block_tokens
    prompt = [100 + number for number in range(3 * block + 5)]
    assert (await caller.usage("a", prompt)).cached_tokens == 0
    for tenant, tokens, found in (
        ("a", prompt, 3 * block),
        ("a", prompt[: 2 * block] + [7] * block, 2 * block),
        ("b", prompt, 0),  # another tenant's blocks are not shared
        ("b", prompt, 3 * block),
    ):
        await finds(follower, tenant, tokens, found)
        assert (await caller.usage(tenant, tokens)).cached_tokens == found
    return prompt


async def test_a_router_of_others_knows_what_vllm_has_in_its_cache(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    caller, python = Caller(nats_bus), stub_python(tmp_path)
    async with vllm_worker(nats_url, python), KVEventFollower(nats_bus, renew_s=0.2) as follower:
        await ready(follower)
        prompt = await compare(caller, follower)
        for number in range(20):  # more blocks than there are
            await caller.usage("c", [200 + number] * len(prompt))
        for tenant in ("a", "b", "c"):
            await finds(follower, tenant, prompt, 0)
            assert (await caller.usage(tenant, prompt)).cached_tokens == 0


@pytest.mark.guests
@pytest.mark.timeout(1200)
async def test_a_router_of_others_knows_the_cache_of_vllm_itself(nats_url: str, nats_bus: NatsBus) -> None:
    async with (
        vllm_worker(nats_url, vllm_python(), f"{ARGUMENTS} {EVENTS}"),
        KVEventFollower(nats_bus, renew_s=0.2) as follower,
    ):
        await ready(follower)
        await compare(Caller(nats_bus), follower)
        async with KVEventFollower(nats_bus) as fresh:
            await fresh.until_current(PATIENCE_S)
            assert fresh.index.names(GROUP) == follower.index.names(GROUP)
        print(f"{len(follower.index.names(GROUP))} blocks of {follower.index.groups[GROUP].block_tokens}")


async def test_a_vllm_that_was_started_anew_has_an_empty_cache(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    caller = Caller(nats_bus)
    async with (
        vllm_worker(nats_url, stub_python(tmp_path)) as process,
        KVEventFollower(nats_bus, renew_s=0.2) as follower,
    ):
        epoch = await ready(follower)
        prompt = [*range(100, 200)]
        for _ in range(2):
            await caller.usage("a", prompt)
            await finds(follower, "a", prompt, 96)
            core = next(
                one
                for one in psutil.Process(process.pid).children(recursive=True)
                if "spawn_main" in " ".join(one.cmdline())
            )
            os.kill(core.pid, signal.SIGKILL)
            epoch = await ready(follower, other_than=epoch)
            assert await leading(follower, "a", prompt) == 0


async def test_a_vllm_without_events_claims_nothing(nats_url: str, nats_bus: NatsBus, tmp_path: Path) -> None:
    async with (
        vllm_worker(nats_url, stub_python(tmp_path), arguments=""),
        KVEventFollower(nats_bus, renew_s=0.2) as follower,
    ):
        await ready(follower)
        await Caller(nats_bus).usage("a", [*range(100, 200)])
        await follower.until_current(PATIENCE_S)
        assert follower.index.groups[GROUP].sharing == "off"
        assert follower.index.names(GROUP) == set()
