"""Sends turns to a chosen group over the bus, as a router would, and times the answers.

Prompts are token ids, so a turn's KV depends on them only. The KV state service reports whether the store has
all of a prompt, by the block names that the groups use.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from benchmarks.lib.measuring import BenchError
from shared import kv_hash, subjects
from shared.bus import Message
from shared.bus.endpoint import call
from shared.bus.nats import NatsBus
from shared.client.calls.blocks_client import BlocksClient
from shared.client.calls.model_list import list_models
from shared.codec import decode, encode, pack_tokens, unpack_tokens
from shared.messages import (
    Done,
    Failed,
    FrameBatch,
    GenerateRequest,
    HoldersQuery,
    Holding,
    Route,
    Sampling,
    Tokens,
    Usage,
    Work,
)

TENANT = "bench"
KVPolicy = Literal["auto", "fetch", "recompute"]
_STORED_S = 30.0
_ANSWER_S = 120.0


@dataclass(slots=True)
class GroupTurn:
    """A turn's answer; `first_s` are the seconds until the first token."""

    sent: float
    first_s: float = 0.0
    usage: Usage = field(default_factory=Usage)
    tokens: list[int] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str = ""


class GroupClient:
    """Connections to groups; turns may run side by side. `connect` makes one."""

    def __init__(self, bus: NatsBus, asks: NatsBus, model: str, names: tuple[str, str]) -> None:
        self._bus = bus
        self._asks = asks
        self._model = model
        self._names = names
        self._inbox = f"{bus.new_inbox()}.f"
        self._blocks = BlocksClient(asks)
        self._turns: dict[str, GroupTurn] = {}
        self._numbers = count()

    @classmethod
    async def connect(cls, urls: Mapping[str, str], model: str) -> "GroupClient":
        """Connect to the broker, and learn how the groups name blocks.

        Args:
            urls: The broker's URLs, by user.

        Raises:
            BenchError: The model is not served.
        """
        bus = await NatsBus.connect(urls["router"], name="bench", local=True)  # may give work to a group
        asks = await NatsBus.connect(urls["cli"], name="bench", local=True)
        cards = {card.name: card for card in await list_models(asks, timeout_s=5.0)}
        if model not in cards:
            raise BenchError(f"no group serves {model}")
        query = HoldersQuery(tenant=TENANT, token_ids=b"")
        holding = await call(asks, subjects.KV_HOLDERS, query, Holding, timeout_s=5.0)
        client = cls(bus, asks, model, (cards[model].fingerprint, holding.kv_format))
        await bus.subscribe(client._inbox, client._on_frames)
        await bus.flush()
        return client

    async def close(self) -> None:
        """Close the connections."""
        await self._asks.close()
        await self._bus.close()

    async def send_turn(
        self, group: str, prompt: Sequence[int], *, tokens: int = 1, kv: KVPolicy = "auto"
    ) -> GroupTurn:
        """Have a group answer with so many tokens, greedily.

        Raises:
            BenchError: It failed, or was not done in time.
        """
        request_id = f"bench-{next(self._numbers)}"
        request = GenerateRequest(
            request_id=request_id,
            model=self._model,
            prompt_token_ids=pack_tokens(list(prompt)),
            sampling=Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True),
            tenant=TENANT,
            kv=kv,
        )
        route = Route(group=group, reason="bench", router_id="bench")
        work = encode(Work(request=encode(request), route=route, reply_to=self._inbox))
        turn = self._turns[request_id] = GroupTurn(time.perf_counter())
        try:
            await self._bus.publish(subjects.work(group), work)
            async with asyncio.timeout(_ANSWER_S):
                await turn.done.wait()
        except TimeoutError as error:
            raise BenchError(f"group {group} did not answer within {_ANSWER_S:g} s") from error
        finally:
            del self._turns[request_id]
        if turn.failure:
            raise BenchError(f"group {group} failed: {turn.failure}")
        return turn

    async def await_stored(self, tokens: Sequence[int]) -> None:
        """Wait until the store has all full blocks of these tokens.

        Raises:
            BenchError: It did not get them in time.
        """
        parent, names = kv_hash.root(*self._names, TENANT), list[bytes]()
        for end in range(kv_hash.BLOCK_TOKENS, len(tokens) + 1, kv_hash.BLOCK_TOKENS):
            parent = kv_hash.extend(parent, tokens[end - kv_hash.BLOCK_TOKENS : end])
            names.append(parent)
        deadline, found = time.monotonic() + _STORED_S, 0
        while time.monotonic() < deadline:
            found = (await self._blocks.find(names)).count
            if found == len(names):
                return
            await asyncio.sleep(0.02)
        raise BenchError(f"the store has {found} of {len(names)} blocks after {_STORED_S:g} s")

    async def _on_frames(self, message: Message) -> None:
        now = time.perf_counter()
        for frame in decode(message.data, FrameBatch).frames:
            turn = self._turns.get(frame.request_id)
            if turn is None:
                continue
            match frame:
                case Tokens():
                    turn.first_s = turn.first_s or now - turn.sent
                    for delta in frame.deltas:
                        turn.tokens += unpack_tokens(delta.token_ids)
                case Done():
                    turn.usage = frame.usage
                    turn.done.set()
                case Failed():
                    turn.failure = frame.message
                    turn.done.set()
