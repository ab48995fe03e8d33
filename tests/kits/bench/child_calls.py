"""What the tests of `benchmarks/lib/child.py` and `benchmarks/engine/engine.py` run in a child process."""

import os
import time
from collections.abc import Sequence

from benchmarks.lib.measuring import BenchError
from benchmarks.peers.base import Timing


class Helper:
    """Calls that return, raise or end the child process."""

    def __init__(self, refuse: str = "", broken: bool = False) -> None:
        if refuse:
            raise BenchError(refuse)
        if broken:
            raise ZeroDivisionError("no luck")

    def run_batch(self, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int) -> Timing:
        """Reports the timing of a peer that needs a millisecond for each token of all prompts."""
        del threads
        steps = (num_tokens - 1) / 1e3
        return Timing(len(prompts) * len(prompts[0]) / 1e3, steps, [[0] * num_tokens for _ in prompts])

    def variable(self, name: str) -> str:
        """A variable of the child's environment."""
        return os.environ.get(name, "")

    def refuse(self) -> None:
        """Raises an error of this project."""
        raise BenchError("it was refused")

    def leave(self, code: int) -> None:
        """Ends the process without an answer."""
        os._exit(code)

    def sleep(self, seconds: float) -> None:
        """Answers after a pause."""
        time.sleep(seconds)
