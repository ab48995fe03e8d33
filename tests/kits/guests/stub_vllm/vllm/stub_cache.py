"""The prefix cache of the stand-in, and its events over ZeroMQ as vLLM publishes them."""

import itertools
import time
from threading import Thread
from typing import Any

import msgspec

_END = (-1).to_bytes(8, "big", signed=True)


class StubCache:
    """Blocks by the salt and all tokens up to their end; the oldest make room.

    Args:
        events: `--kv-events-config`; empty: nothing is published.
    """

    def __init__(self, block_size: int, num_blocks: int, events: dict[str, Any]) -> None:
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._hashes: dict[tuple[str, tuple[int, ...]], int] = {}
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self._publisher = StubPublisher(events) if events.get("enable_kv_cache_events") else None

    def count(self, tokens: list[int], salt: str) -> int:
        """How many tokens of a prompt, but for its last one, are in it."""
        cached = 0
        for end in range(self._block_size, len(tokens), self._block_size):
            if (salt, tuple(tokens[:end])) not in self._hashes:
                break
            cached = end
        return cached

    def store(self, tokens: list[int], salt: str) -> None:
        """Stores all blocks that the tokens fill."""
        parent = None
        for end in range(self._block_size, len(tokens) + 1, self._block_size):
            key = (salt, tuple(tokens[:end]))
            if key not in self._hashes:
                self._make_room()
                self._hashes[key] = next(self._numbers)
                self._events.append(self._stored(key, parent))
            parent = self._hashes[key]

    def publish(self) -> None:
        """Publishes what came and went in a step."""
        events, self._events = self._events, []
        if events and self._publisher is not None:
            self._publisher.publish(events)

    def _stored(self, key: tuple[str, tuple[int, ...]], parent: int | None) -> dict[str, Any]:
        salt, tokens = key
        return {
            "type": "BlockStored",
            "block_hashes": [self._hashes[key]],
            "parent_block_hash": parent,
            "token_ids": tokens[-self._block_size :],
            "block_size": self._block_size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [[salt] if salt and parent is None else None],
        }

    def _make_room(self) -> None:
        while len(self._hashes) >= self._num_blocks:
            oldest = next(iter(self._hashes))
            gone = {"type": "BlockRemoved", "block_hashes": [self._hashes.pop(oldest)], "medium": "GPU"}
            self._events.append(gone)


class StubPublisher:
    """PUB with topic, number and batch, and a ROUTER that sends batches again."""

    def __init__(self, config: dict[str, Any]) -> None:
        import zmq  # noqa: PLC0415 (few stand-ins publish)

        self._topic = config.get("topic", "").encode()
        self._kept: list[bytes] = []
        context = zmq.Context()
        self._events, self._replays = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        self._events.bind(config["endpoint"])
        self._replays.bind(config["replay_endpoint"])
        Thread(target=self._serve_replays, daemon=True).start()

    def publish(self, events: list[dict[str, Any]]) -> None:
        payload = msgspec.msgpack.encode({"ts": time.time(), "events": events, "data_parallel_rank": 0})
        self._kept.append(payload)
        number = (len(self._kept) - 1).to_bytes(8, "big")
        self._events.send_multipart([self._topic, number, payload])

    def _serve_replays(self) -> None:
        while True:
            client, _, first = self._replays.recv_multipart()
            begin = int.from_bytes(first, "big")
            for number, payload in enumerate(self._kept[begin:], begin):
                self._replays.send_multipart([client, b"", number.to_bytes(8, "big"), payload])
            self._replays.send_multipart([client, b"", _END, b""])
