"""The contract of a peer: another engine that computes the same model, timed as ours is.

A peer runs in a process of its own (`start_peer`), so that its threads and memory are its own.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.lib.measuring import BenchError


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of a batch.

    Attributes:
        prefill_s: From the prompts' start until every sequence has its first token.
        decode_s: Seconds of all later tokens.
        tokens: Generated tokens of each sequence, the first included.
    """

    prefill_s: float
    decode_s: float
    tokens: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLoad:
    """What a peer loads, and what for; its class is made with this alone.

    Attributes:
        model: Path of the model in the form that the peer loads.
        max_sequences: Largest batch.
        max_length: Longest prompt with its answer, in tokens.
        logits: Whether it is asked for the logits of every position, not for its speed.
        device: `cpu`, or `cuda` for a peer that says so in `KnownPeer.on_gpus`.
    """

    model: str
    kind: str
    max_sequences: int
    max_length: int
    threads: int
    logits: bool = False
    device: str = "cpu"


class Peer(Protocol):
    """A loaded model. It decodes greedily past every end of sequence, and keeps nothing between runs.

    Its class is made with a `PeerLoad`, and refuses what it has not with `BenchError`.
    """

    def run_batch(self, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int) -> Timing:
        """Generate `num_tokens` for each prompt, all in one batch; the prompts have one length."""
        ...


def whole_runs(
    generate: Callable[[Sequence[Sequence[int]], int], list[list[int]]],
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
) -> Timing:
    """Time a peer that gives only whole answers: a run of one token is the prefill, a whole one has both.

    Args:
        generate: Takes prompts and the number of tokens to generate, and returns the tokens.
        prompts: Token ids.

    Raises:
        BenchError: The whole answers took no longer than their first tokens.
    """
    began = time.perf_counter()
    generate(prompts, 1)
    middle = time.perf_counter()
    tokens = generate(prompts, num_tokens)
    prefill_s, whole_s = middle - began, time.perf_counter() - middle
    if whole_s <= prefill_s:
        raise BenchError(f"{num_tokens} tokens took no longer than one; ask for more --tokens")
    return Timing(prefill_s, whole_s - prefill_s, tokens)
