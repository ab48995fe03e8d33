"""Turns blocks of quantized numbers into fp32, for every type that the `gguf` package knows."""

from functools import cache

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

# values that the package is given as one row: it works on 16 rows at once, and these fit into a core's cache
_ROW_VALUES = 2048


def dequantize(data: NDArray[np.uint8], kind: GGMLQuantizationType) -> NDArray[np.float32]:
    """The values of whole blocks that follow each other.

    Args:
        data: [bytes], a multiple of the type's block.

    Returns:
        [values], fp32.
    """
    block, block_bytes = GGML_QUANT_SIZES[kind]
    row_bytes = max(1, _ROW_VALUES // block) * block_bytes
    whole = len(data) // row_bytes * row_bytes
    with np.errstate(all="ignore"):  # a damaged scale may be infinite or no number
        parts = [
            quants.dequantize(part.reshape(-1, width), kind).reshape(-1)
            for part, width in ((data[:whole], row_bytes), (data[whole:], len(data) - whole))
            if part.size
        ]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.float32), *parts])


@cache
def can_dequantize(kind: GGMLQuantizationType) -> bool:
    """Whether the package knows how."""
    try:
        quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
