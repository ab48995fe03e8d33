"""The share of a token: exp((score - peak) / temperature), its probability relative to the likeliest token's.

Defined by a fixed sequence of operations, each rounded once in fp32: a library's `exp` may differ in the last
bit between versions and machines, and with it the token that is drawn. The same bits are computed by
`native/src/sampling/shares.h`. Range reduction by ln 2 in two parts, then a Taylor
polynomial of degree 6 (see Muller, "Elementary Functions", chapter on range reduction).
"""

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]

COLDEST = 1e-37  # a lower temperature would be subnormal in fp32
FAINTEST = np.float32(-86)  # of an exponent; below it the share is 0
_LOG2_E = np.float32(1.44269504088896341)
_LN_2 = np.float32(0.693359375), np.float32(-2.12194440e-4)  # products of the first with n are exact
_COEFFICIENTS = [np.float32(1) / np.float32(n) for n in (720, 120, 24, 6, 2, 1, 1)]
_CHUNK = 16_384  # tokens at a time, so that what is between the operations stays in the cache


def inverse_of(temperature: float) -> np.float32:
    """The factor of scores that stands for a temperature."""
    return np.float32(1 / max(temperature, COLDEST))


def share(scores: Scores, peak: np.float32, temperature: float, out: Scores | None = None) -> Scores:
    """Each token's probability relative to the likeliest one's.

    Args:
        scores: [tokens]; may hold -infinity.
        peak: The highest score.
        temperature: Above 0.
        out: Gets the result, [tokens]; may be `scores`.
    """
    shares = np.empty_like(scores) if out is None else out
    inverse = inverse_of(temperature)
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the likeliest to -infinity
        for begin in range(0, len(scores), _CHUNK):
            part = scores[begin : begin + _CHUNK] - peak
            part *= inverse
            shares[begin : begin + _CHUNK] = _exponential(part)
    return shares


def _exponential(exponents: Scores) -> Scores:
    rest = np.maximum(exponents, FAINTEST)
    scratch = rest * _LOG2_E
    powers = np.rint(scratch, out=scratch)
    rest -= powers * _LN_2[0]
    rest -= powers * _LN_2[1]
    result = np.full_like(rest, _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        result *= rest
        result += coefficient
    bits = powers.astype(np.int32)
    bits += 127
    bits <<= 23
    result *= bits.view(np.float32)
    result *= exponents >= FAINTEST
    return result
