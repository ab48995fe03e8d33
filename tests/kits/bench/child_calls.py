"""What the tests of `benchmarks/lib/child.py` and `benchmarks/engine/engine.py` run in a child process."""

import os
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.measuring import BenchError
from benchmarks.peers.base import Timing


class Helper:
    """Calls that return, raise or end the child process."""

    def __init__(self, refuse: str = "", broken: bool = False, token_s: float = 1e-3) -> None:
        self._token_s = token_s
        if refuse:
            raise BenchError(refuse)
        if broken:
            raise ZeroDivisionError("no luck")

    def run_batch(self, prompts: Sequence[Sequence[int]], num_tokens: int, threads: int) -> Timing:
        """Reports the timing of a peer that needs `token_s` for each token of all sequences."""
        del threads
        steps = (num_tokens - 1) * self._token_s
        return Timing(
            len(prompts) * len(prompts[0]) * self._token_s, steps, [[0] * num_tokens for _ in prompts]
        )

    def begin(self, sequences: int, texts: object = None) -> None:
        """Forgets how many sequences there were."""
        del sequences, texts

    def feed(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Gives logits of a model of 512 words that finds its first one likeliest."""
        logits = np.zeros((sum(map(bool, tokens)), 512), np.float32)
        logits[:, 0] = 1
        return logits

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
