"""Packs of numbers in words of 32 bits, from the lowest bits of the first word on; it imports no torch.

Numbers of 3 bits may begin in one word and end in the next: 32 of them take three words.
"""

from math import gcd

import numpy as np
from numpy.typing import NDArray

WORD = 32  # bits


def unpacked(words: NDArray[np.int32], bits: int, count: int) -> NDArray[np.uint8]:
    """Unpack words, [rows, words], into numbers, [rows, count].

    Args:
        words: Those of a row begin with a number, and hold at least `count`.
        bits: Of a number: 2, 3, 4 or 8.
        count: Numbers of a row.
    """
    held = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return held[:, :count]
    if bits == 3:  # three bytes hold eight numbers
        threes = np.pad(held, ((0, 0), (0, -held.shape[1] % 3))).reshape(len(words), -1, 3).astype(np.int32)
        joined = threes[..., 0] | threes[..., 1] << 8 | threes[..., 2] << 16
        numbers: NDArray[np.uint8] = np.empty((*joined.shape, 8), dtype=np.uint8)
        for index in range(8):
            numbers[..., index] = joined >> (3 * index) & 7
    else:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        numbers = (held[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(len(words), -1)[:, :count]


def words_of(numbers: range, bits: int) -> tuple[range, int]:
    """The words that have consecutive numbers of a row.

    Returns:
        The words, which begin with a number, and how many others these hold before the wanted ones.
    """
    unit = bits // gcd(bits, WORD)  # words after which a number begins
    each = unit * WORD // bits
    first = numbers.start // each
    return range(first * unit, -(-numbers.stop * bits // WORD)), numbers.start - first * each
