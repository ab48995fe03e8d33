"""Publishes KV events as vLLM does: PUB with topic, number and batch, and a ROUTER that sends batches again.

It is written from the description of that format, to be killed, started anew and made to lose batches.
"""

import itertools
import time
from collections import deque
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from tests.kits.waiting import wait_for

END = (-1).to_bytes(8, "big", signed=True)


def stored(
    hashes: list[Any], parent: Any, token_ids: list[int], size: int = 16, *, salt: str = "", **more: Any
) -> dict[str, Any]:
    """An event of blocks that were stored; a salt is in the keys of a first block."""
    keys: list[list[Any] | None] = [None] * len(hashes)
    if salt and parent is None:
        keys[0] = [salt]
    fields = {
        "block_hashes": hashes, "parent_block_hash": parent, "token_ids": token_ids, "block_size": size,
        "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": keys,
    }  # fmt: skip
    return {"type": "BlockStored"} | fields | more


def removed(hashes: list[Any], **more: Any) -> dict[str, Any]:
    """An event of blocks that were evicted."""
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"} | more


CLEARED = {"type": "AllBlocksCleared"}


def as_array(events: list[dict[str, Any]], ts: float = 1.0) -> bytes:
    """A batch in the form of older releases."""
    return msgspec.msgpack.encode([ts, [list(event.values()) for event in events], 0])


def as_map(events: list[dict[str, Any]], ts: float = 1.0) -> bytes:
    """A batch in the form of newer releases."""
    return msgspec.msgpack.encode({"ts": ts, "events": events, "data_parallel_rank": 0})


class VllmPublisher:
    """One start of an engine.

    Args:
        port: Of the events; the next one is that of replays.
        kept: Batches that it sends again.
    """

    def __init__(self, port: int, kept: int = 10_000, topic: str = "kv") -> None:
        self._context = zmq.asyncio.Context()
        self._address = f"tcp://127.0.0.1:{port}"
        self._topic = topic.encode()
        self._numbers = itertools.count()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self._events = self._context.socket(zmq.PUB)
        self._events.bind(self._address)
        self._replays = self._context.socket(zmq.ROUTER)
        self._replays.bind(f"tcp://127.0.0.1:{port + 1}")
        self.num_replays = 0

    async def publish(self, *events: dict[str, Any], lost: bool = False, arrays: bool = False) -> None:
        """Sends a batch; with `lost` it goes to the kept ones only."""
        seq = next(self._numbers)
        payload = (as_array if arrays else as_map)(list(events), time.time())
        self._kept.append((seq, payload))
        if not lost:
            await self._events.send_multipart([self._topic, seq.to_bytes(8, "big"), payload])

    async def serve_replays(self) -> None:
        """Answers questions for batches until cancelled."""
        while True:
            client, _, first = await self._replays.recv_multipart()
            self.num_replays += 1
            for seq, payload in list(self._kept):
                if seq >= int.from_bytes(first, "big"):
                    await self._replays.send_multipart([client, b"", seq.to_bytes(8, "big"), payload])
            await self._replays.send_multipart([client, b"", END, b""])

    def drop_connections(self) -> None:
        """Cuts the connections of subscribers, and listens again: the engine lives on."""
        self._events.close(linger=0)
        self._events = self._context.socket(zmq.PUB)
        wait_for(self._bound, "the port is free again")  # its thread closes a socket later

    def _bound(self) -> bool:
        try:
            self._events.bind(self._address)
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                return False
            raise
        return True

    def kill(self) -> None:
        """Ends it; what was not sent is lost."""
        self._context.destroy(linger=0)
