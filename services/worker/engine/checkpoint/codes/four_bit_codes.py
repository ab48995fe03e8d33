"""Four-bit floats of safetensors files (MXFP4) as codes: a table of halves, and powers of two as scales."""

import numpy as np
import torch
from numpy.typing import NDArray

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.codes.four_bit_floats import GROUP, VALUES


def four_bit_codes(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> EncodedMatrix:
    """Codes [rows, 32 * groups] of blocks [rows, 16 * groups] and scales [rows, groups]."""
    codes = np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(len(blocks), -1)
    # the table has whole numbers, twice the values; bf16 holds all powers of two that a byte names
    halves = np.ldexp(np.float32(0.5), scales.astype(np.int32) - 127)
    return EncodedMatrix(
        codes=torch.from_numpy(codes),
        bits=4,
        group=GROUP,
        scales=torch.from_numpy(halves).to(torch.bfloat16),
        table=torch.from_numpy((2 * VALUES).astype(np.int8)),
    )
