"""Leaders are killed and started again, 20 times, with `make chaos` 200: a foreign index equals each cache.

It compares the index with what the leader answers to another call, prompt by prompt, and with the index of a
follower that has just come and so knows nothing but a snapshot.
"""

import asyncio
import random
import time
from contextlib import AsyncExitStack

import pytest

from shared import codec, subjects
from shared.bus.api import Message, NoResponders, RequestTimedOut
from shared.bus.endpoint import call
from shared.bus.nats import NatsBus
from shared.client.kv_events import KVEventFollower, block_names
from shared.kv_hash import BLOCK_TOKENS
from shared.messages import Done, Failed, FrameBatch, HoldersQuery, Holding, KVFollow, KVFollowed, Route, Work
from tests.kits.chaos.scale import scaled
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.leader import chat
from tests.kits.worker.process import worker

pytestmark = pytest.mark.timeout(scaled(600, 7200))
KILLS = scaled(20, 200)
GROUP = "kv-events"
BLOCKS = 40  # fewer than the prompts need together: blocks are evicted all the time
PROMPTS = 24


def prompt(number: int) -> list[int]:
    """Prompts of some blocks, of which four begin alike."""
    return [number // 4 + 1] * 64 + [number + 20] * (16 * (1 + number % 5))


class Caller:
    """Sends requests straight to the group, and knows which have ended."""

    def __init__(self, bus: NatsBus) -> None:
        self._bus = bus
        self._inbox = bus.new_inbox() + ".f"
        self._sent = 0
        self.open: set[str] = set()

    async def start(self) -> None:
        await self._bus.subscribe(self._inbox, self._on_frames)

    async def send(self, number: int) -> None:
        name = f"r{self._sent}"
        self._sent += 1
        self.open.add(name)
        sampling = {"max_tokens": 30, "ignore_eos": True}
        request = chat(name, prompt_token_ids=codec.pack_tokens(prompt(number)), sampling=sampling)
        route = Route(group=GROUP, reason="test")
        work = Work(request=codec.encode(request), route=route, reply_to=self._inbox)
        await self._bus.publish(subjects.work(GROUP), codec.encode(work))

    async def _on_frames(self, message: Message) -> None:
        for frame in codec.decode(message.data, FrameBatch).frames:
            if isinstance(frame, Done | Failed):
                self.open.discard(frame.request_id)


async def holding(bus: NatsBus, tokens: list[int]) -> int:
    """How many leading blocks of a prompt the leader says it has, by the call that `ryz` uses."""
    query = HoldersQuery(tenant="default", token_ids=codec.pack_tokens(tokens))
    answer = await bus.request(subjects.KV_HOLDERS, codec.encode(query), timeout_s=PATIENCE_S)
    return codec.decode_reply(answer.data, Holding).cached_tokens // BLOCK_TOKENS


async def is_up(bus: NatsBus) -> bool:
    """Whether the engine of the group is ready: before, it says that it names no blocks."""
    try:
        followed = await call(bus, subjects.KV_FOLLOW, KVFollow(), KVFollowed, timeout_s=1.0)
    except (NoResponders, RequestTimedOut):  # the broker may not know yet that the one before is gone
        return False
    return followed.sharing != "off"


async def compare(bus: NatsBus, follower: KVEventFollower) -> int:
    """Compares both ways; returns how many blocks there are."""
    await follower.until_current(PATIENCE_S)
    index = follower.index
    group = index.groups[GROUP]
    for number in range(PROMPTS):
        names = block_names(group, prompt(number), "default")
        assert index.find(names).get(GROUP, 0) == await holding(bus, prompt(number)), f"prompt {number}"
    async with KVEventFollower(bus) as fresh:
        await fresh.until_current(PATIENCE_S)
        assert fresh.index.names(GROUP) == index.names(GROUP)
        assert fresh.index.groups[GROUP].held == len(index.names(GROUP))
    return len(index.names(GROUP))


async def test_a_foreign_index_equals_the_cache_after_each_kill(nats_url: str, nats_bus: NatsBus) -> None:
    chance, caller, began = random.Random(39), Caller(nats_bus), time.monotonic()
    epochs, blocks = set[str](), 0
    await caller.start()
    async with AsyncExitStack() as stack:
        follower = await stack.enter_async_context(KVEventFollower(nats_bus, renew_s=1.0))
        for _ in range(KILLS):
            options = {"KV_CACHE_TOKENS": str(BLOCKS * BLOCK_TOKENS), "NULL_STEP_DELAY_MS": "1"}
            async with worker(nats_url, GROUP, **options) as process:
                await until(lambda: is_up(nats_bus))
                for _ in range(chance.randint(4, 12)):
                    await caller.send(chance.randrange(PROMPTS))
                await until(lambda: not caller.open)
                blocks += await compare(nats_bus, follower)
                print(f"kill {len(epochs)}: {blocks} blocks compared", flush=True)
                epochs.add(follower.index.groups[GROUP].epoch)
                for _ in range(chance.randint(0, 6)):  # it dies in the midst of them, or before
                    await caller.send(chance.randrange(PROMPTS))
                await asyncio.sleep(chance.random() * 0.05)
                process.kill()
                await process.wait()
                caller.open.clear()
        assert len(epochs) == KILLS
        assert blocks > KILLS * BLOCKS // 2
    print(f"{KILLS} kills in {time.monotonic() - began:.0f} s, {blocks} blocks compared, all equal")
