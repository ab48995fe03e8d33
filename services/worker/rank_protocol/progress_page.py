"""The progress page: shared memory with a cache line per rank, written by the rank and read by the leader.

A rank counts beats (about one for each operation of a layer), steps begun and steps done. All ranks of a
group count beats at the same points, so the others wait for the rank with the fewest.
`engine/rank/shared_pages.py` writes it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from services.worker.rank_protocol.rank_messages import CACHE_LINE

BEATS, BEGUN, DONE = range(3)  # words of a line, 8 bytes each; each has one writer and they only grow
LINE_WORDS = CACHE_LINE // 8


class RankProgress(NamedTuple):
    """The counts of one rank; see the module."""

    beats: int
    begun: int
    done: int


def page_bytes(world: int) -> int:
    """Return the size of the page for `world` ranks, in bytes."""
    return CACHE_LINE * world


def read_progress(words: Sequence[int], rank: int) -> RankProgress:
    """Return a rank's counts; `words` is the page, in words of 8 bytes."""
    line = rank * LINE_WORDS
    return RankProgress(words[line + BEATS], words[line + BEGUN], words[line + DONE])
