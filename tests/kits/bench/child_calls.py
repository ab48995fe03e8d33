"""What the tests of `benchmarks/lib/child.py` and `benchmarks/engine/engine.py` run in a child process."""

import os
import time
from collections.abc import Sequence

from benchmarks.lib.measuring import BenchError
from benchmarks.peers.base import Timing


class Helper:
    """Answers, refuses, breaks or dies."""

    def __init__(self, refuse: str = "", broken: bool = False) -> None:
        if refuse:
            raise BenchError(refuse)
        if broken:
            raise ZeroDivisionError("no luck")

    def run_batch(self, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int) -> Timing:
        """As a peer that needs a millisecond for each token of all prompts."""
        del threads
        steps = (num_tokens - 1) / 1e3
        return Timing(len(prompts) * len(prompts[0]) / 1e3, steps, [[0] * num_tokens for _ in prompts])

    def variable(self, name: str) -> str:
        """One of its environment."""
        return os.environ.get(name, "")

    def refuse(self) -> None:
        """An error of ours."""
        raise BenchError("it was refused")

    def leave(self, code: int) -> None:
        """Ends without an answer."""
        os._exit(code)

    def sleep(self, seconds: float) -> None:
        """Does not answer for a while."""
        time.sleep(seconds)
