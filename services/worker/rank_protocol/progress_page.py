"""Where ranks show how far they are: a cache line for each in a page that they share with their leader.

A rank counts three things in its line: beats, which are parts of steps (about one for each operation of a
layer), steps that it began, and steps that it finished. All ranks of a group beat at the same places, so who
has beaten least often is the one that the others wait for. The writer is `engine/progress.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from services.worker.rank_protocol.rank_messages import CACHE_LINE

BEATS, BEGUN, DONE = range(3)  # words of a line, 8 bytes each; each has one writer and they only grow
LINE_WORDS = CACHE_LINE // 8


class RankProgress(NamedTuple):
    """See the module."""

    beats: int
    begun: int
    done: int


def page_bytes(world: int) -> int:
    """Size of the page for so many ranks."""
    return CACHE_LINE * world


def read_progress(words: Sequence[int], rank: int) -> RankProgress:
    """A rank's counts. words: the page, 8 bytes each."""
    line = rank * LINE_WORDS
    return RankProgress(words[line + BEATS], words[line + BEGUN], words[line + DONE])
