"""Random numbers that depend on (seed, choice, position) and on nothing else.

A counter-based generator has no state to carry from token to token, so any rank of any group draws the same
number for the same position. `top_k_top_p.py` chooses a token by it.
"""

import numpy as np

BITS = 53  # of a draw; as many as the mantissa of a float64


class Draws:
    """Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), as in numpy."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)
        self._state = self._philox.state

    def draw_bits(self, seed: int, choice: int, position: int) -> int:
        """53 random bits: the top ones of the generator's first word for that key and counter."""
        inner = self._state["state"]
        inner["key"][:] = (seed, choice)
        inner["counter"][:] = (position, 0, 0, 0)
        self._state["buffer_pos"] = 4  # nothing is buffered from an earlier draw
        self._philox.state = self._state
        return int(self._philox.random_raw()) >> (64 - BITS)
