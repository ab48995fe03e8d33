"""Sends turns to a group of one's choice over the bus, as a router would, and times the answers.

Prompts are token ids, so a turn's KV depends on nothing but them. Whether the store has all of a prompt is
asked of the KV state service, by the names that the groups use.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from shared import kv_hash, subjects
from shared.bus import Message
from shared.bus.endpoint import call
from shared.bus.nats import NatsBus
from shared.client.calls.blocks_client import BlocksClient
from shared.client.calls.model_list import list_models
from shared.codec import decode, encode, pack_tokens, unpack_tokens
from shared.messages import (
    Accepted,
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
Policy = Literal["auto", "fetch", "recompute"]
_STORED_S = 30.0
_ANSWER_S = 120.0


class TurnError(Exception):
    """A turn gave no figure; the text says why."""


@dataclass(slots=True)
class Turn:
    """A turn's answer. first_s: until the first token. kv: what the leader said of the prompt's KV."""

    sent: float
    first_s: float = 0.0
    kv: str = ""
    usage: Usage = field(default_factory=Usage)
    tokens: list[int] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str = ""


class GroupClient:
    """Connections to groups; turns may run side by side. Make it with `connect`."""

    def __init__(self, bus: NatsBus, asks: NatsBus, model: str) -> None:
        self._bus = bus
        self._asks = asks
        self._model = model
        self._inbox = f"{bus.new_inbox()}.f"
        self._blocks = BlocksClient(asks)
        self._turns: dict[str, Turn] = {}
        self._numbers = count()
        self._names = ("", "")

    @classmethod
    async def connect(cls, urls: Mapping[str, str], model: str, group: str) -> "GroupClient":
        """Connects, and learns how the groups name blocks; `urls` are the broker's, by user.

        Raises:
            TurnError: the model is not served.
        """
        bus = await NatsBus.connect(urls["router"], name="bench", local=True)  # who may give work to a group
        asks = await NatsBus.connect(urls["cli"], name="bench", local=True)
        client = cls(bus, asks, model)
        await bus.subscribe(client._inbox, client._on_frames)
        await bus.flush()
        cards = {card.name: card for card in await list_models(asks, timeout_s=5.0)}
        if model not in cards:
            raise TurnError(f"nobody serves {model}")
        query = HoldersQuery(tenant=TENANT, token_ids=b"")
        holding = await call(asks, subjects.KV_HOLDERS, query, Holding, timeout_s=5.0)
        client._names = (cards[model].fingerprint, holding.kv_format)
        return client

    async def close(self) -> None:
        """Lets go of the connections."""
        await self._asks.close()
        await self._bus.close()

    async def turn(self, group: str, prompt: Sequence[int], *, tokens: int = 1, kv: Policy = "auto") -> Turn:
        """Has a group answer with so many tokens, greedily.

        Raises:
            TurnError: it did not.
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
        turn = self._turns[request_id] = Turn(time.perf_counter())
        try:
            await self._bus.publish(subjects.work(group), work)
            async with asyncio.timeout(_ANSWER_S):
                await turn.done.wait()
        except TimeoutError as error:
            raise TurnError(f"group {group} did not answer within {_ANSWER_S:g} s") from error
        finally:
            del self._turns[request_id]
        if turn.failure:
            raise TurnError(f"group {group} failed: {turn.failure}")
        return turn

    async def stored(self, tokens: Sequence[int]) -> None:
        """Waits until the store has all full blocks of these tokens.

        Raises:
            TurnError: it does not get them.
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
        raise TurnError(f"the store has {found} of {len(names)} blocks after {_STORED_S:g} s")

    async def _on_frames(self, message: Message) -> None:
        now = time.perf_counter()
        for frame in decode(message.data, FrameBatch).frames:
            turn = self._turns.get(frame.request_id)
            if turn is None:
                continue
            match frame:
                case Accepted():
                    turn.kv = frame.kv
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
