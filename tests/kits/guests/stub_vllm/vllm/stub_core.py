"""The process of the stand-in that computes."""

import os
import time
from multiprocessing.connection import Connection
from typing import Any

from .stub_cache import StubCache
from .stub_grammar import VOCAB_SIZE, Followed

BLOCK_SIZE = 32
NUM_BLOCKS = 64
ORPHANED_S = 300.0  # for which it does not notice that its parent is gone


def run_core(pipe: Connection, step_s: float, error: str, events: dict[str, Any]) -> None:
    """Computes steps: each sequence gets one more than its last token."""
    if error:
        print(
            f"(EngineCore pid={os.getpid()}) ERROR 11-29 12:00:00 [core.py:2] RuntimeError: {error}",
            flush=True,
        )
        raise SystemExit(1)
    pipe.send(os.getpid())
    cache = StubCache(BLOCK_SIZE, NUM_BLOCKS, events)
    running: dict[str, tuple[list[int], int, dict[str, Any], int, int, str]] = {}
    followed: dict[str, Followed] = {}
    while True:
        while pipe.poll(step_s if running else None):
            try:
                kind, *rest = pipe.recv()
            except EOFError:  # whoever started it is gone, which vLLM's own may not notice for long
                time.sleep(ORPHANED_S)
                raise
            if kind == "open":
                request_id, prompt, fields, limit, salt = rest
                running[request_id] = (list(prompt), 0, fields, limit, cache.count(prompt, salt), salt)
                followed[request_id] = Followed(fields.get("grammar", ""))
            elif kind == "close":
                running.pop(rest[0], None)
            else:
                pipe.send("pong")
        step: list[tuple[str, list[int], str | None, int]] = []
        for request_id, (tokens, count, fields, limit, cached, salt) in list(running.items()):
            cache.store(tokens, salt)
            ends = fields["stop_token_ids"]
            token_id = (tokens[-1] + 1) % VOCAB_SIZE
            while count < fields["min_tokens"] and token_id in ends:
                token_id = (token_id + 1) % VOCAB_SIZE
            token_id = followed[request_id].choose(token_id)
            tokens.append(token_id)
            finished = "stop" if token_id in ends else None
            if not finished and count + 1 >= min(fields["max_tokens"], limit):
                finished = "length"
            running[request_id] = (tokens, count + 1, fields, limit, cached, salt)
            if finished:
                del running[request_id]
            step.append((request_id, [token_id], finished, cached))
        cache.publish()
        if step:
            pipe.send(step)
