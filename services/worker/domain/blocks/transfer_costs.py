"""Compares two ways to get a prompt's KV by measured times: computing it, or fetching it from the store.

Computing is measured by the size of a step's chunk, since a short chunk uses the machine worse than a long
one. Fetching is a line, a fixed time and a time per block: ordinary least squares with weights that decay
exponentially (recursive least squares with a forgetting factor, see Haykin, "Adaptive Filter Theory"). Both
follow the load of machine and store.
"""

import math
from typing import Literal

from services.worker.rank_protocol.plan import BLOCK_SIZE

FetchMode = Literal["auto", "always", "never"]
ASSUMED_TOKEN_S = 1 / 500  # until a prompt was computed
ASSUMED_FETCH_S = (0.002, 0.0005)  # fixed, per block; until something was fetched
RETRY_S = 30.0  # a store that was slow is tried again after so long
_WEIGHT = 0.25  # of the newest measurement of a chunk
_KEPT = 0.85  # weight of what was before a fetch
_LEAST_SLOPE = 0.1  # share of a fetch's time that goes with its blocks, at the least
_MIN_SPREAD = 4.0  # variance of the blocks per fetch below which a slope is no more than noise


class TransferCostModel:
    """The measured costs.

    Args:
        token_budget: Of a step, which is the longest chunk.
        mode: `always` and `never` decide without measurements.
    """

    def __init__(self, token_budget: int, mode: FetchMode = "auto") -> None:
        self._budget = token_budget
        self._mode = mode
        self._token_s: dict[int, float] = {}  # chunk's size class -> seconds a token
        self._weight = self._blocks = self._seconds = self._squares = self._products = 0.0
        self._last_fetch = -math.inf

    def computed(self, num_tokens: int, seconds: float) -> None:
        """Records a step of so many tokens, mostly of prompts; a step that took no time is ignored."""
        if seconds <= 0:
            return
        size, token_s = _size_class(num_tokens), seconds / num_tokens
        known = self._token_s.get(size)
        self._token_s[size] = token_s if known is None else known + _WEIGHT * (token_s - known)

    def fetched(self, num_blocks: int, seconds: float, now: float) -> None:
        """Records a fetch.

        Args:
            num_blocks: Blocks that it brought.
            seconds: Since it began, or since the fetch before it was done, for which it had to wait.
            now: Monotonic seconds.
        """
        self._last_fetch = now
        self._weight = self._weight * _KEPT + 1
        self._blocks = self._blocks * _KEPT + num_blocks
        self._seconds = self._seconds * _KEPT + seconds
        self._squares = self._squares * _KEPT + num_blocks * num_blocks
        self._products = self._products * _KEPT + num_blocks * seconds

    def recompute_s(self, num_tokens: int) -> float:
        """Returns the seconds to compute that many tokens of a prompt."""
        whole, rest = divmod(num_tokens, self._budget)
        return whole * self._chunk_s(self._budget) + self._chunk_s(rest)

    def fetch_s(self, num_blocks: int) -> float:
        """Returns the seconds to fetch that many blocks."""
        fixed, each = self._fetch_line()
        return fixed + each * num_blocks

    def fetches(
        self, num_blocks: int, now: float, ahead: int = 0, in_flight: tuple[int, int] = (0, 0)
    ) -> bool:
        """Returns whether fetching is faster than computing.

        When many sequences come at once, as after the loss of a group, some compute while others fetch.

        Args:
            num_blocks: Blocks that are needed.
            now: Monotonic seconds.
            ahead: Tokens that are computed before; they delay computing only.
            in_flight: Fetches in flight, and their blocks; they delay fetching only.
        """
        if self._mode != "auto":
            return self._mode == "always"
        fixed, each = self._fetch_line()
        fetch_s = fixed * (in_flight[0] + 1) + each * (in_flight[1] + num_blocks)
        if fetch_s < self.recompute_s(ahead + num_blocks * BLOCK_SIZE):
            return True
        # a store that is never tried is never seen to be fast again; one fetch at a time measures it
        return not in_flight[0] and now - self._last_fetch > RETRY_S

    def rates(self) -> tuple[float, float, float]:
        """Returns tokens a second computed, and fetched, and a fetch's fixed seconds; 0 if not measured."""
        recompute = self._budget / self._chunk_s(self._budget) if self._token_s else 0.0
        if not self._weight:
            return recompute, 0.0, 0.0
        fixed, each = self._fetch_line()
        return recompute, BLOCK_SIZE / max(each, 1e-9), fixed

    def _chunk_s(self, num_tokens: int) -> float:
        if num_tokens == 0:
            return 0.0
        if not self._token_s:
            return num_tokens * ASSUMED_TOKEN_S
        size = _size_class(num_tokens)
        nearest = min(self._token_s, key=lambda known: (abs(known - size), known))
        return num_tokens * self._token_s[nearest]

    def _fetch_line(self) -> tuple[float, float]:
        """Returns fixed seconds and seconds per block: weighted least squares, neither below zero."""
        if not self._weight:
            return ASSUMED_FETCH_S
        blocks, seconds = self._blocks / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - blocks * blocks
        if spread < _MIN_SPREAD:
            return 0.0, seconds / blocks
        each = (self._products / self._weight - blocks * seconds) / spread
        # noise may slope anywhere, but a block's bytes take some of the time
        each = min(max(each, _LEAST_SLOPE * seconds / blocks), seconds / blocks)
        return seconds - each * blocks, each


def _size_class(num_tokens: int) -> int:
    return num_tokens.bit_length()
