"""The contract of a peer: another engine that computes the same model, timed as ours is.

A peer runs in a process of its own (`start_peer`), so that its threads and memory are its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


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


class Peer(Protocol):
    """A loaded model. It decodes greedily past every end of sequence, and keeps nothing between runs."""

    def run_batch(self, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int) -> Timing:
        """Generate `num_tokens` for each prompt, all in one batch; the prompts have one length."""
        ...
