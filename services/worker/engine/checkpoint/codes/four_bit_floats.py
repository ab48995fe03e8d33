"""Four-bit floats of the OCP Microscaling Formats (MXFP4) as gpt-oss has them in safetensors files.

`NAME_blocks` [..., rows, groups, 16] has two values in a byte, the lower half first; `NAME_scales`
[..., rows, groups] has a power of two, plus 127, for each 32 values.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.checkpoint.stored_tensor import StoredTensor

BLOCKS, SCALES = "_blocks", "_scales"
GROUP, GROUP_BYTES = 32, 16
KIND = "MXFP4"
# sign, two bits of exponent, one of fraction
VALUES = np.array(
    [sign * value for sign in (1, -1) for value in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)], dtype=np.float32
)


def joined(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors with each pair of blocks and scales as one, under the name of the blocks."""
    found = dict(tensors)
    for name, blocks in tensors.items():
        scales = tensors.get(name.removesuffix(BLOCKS) + SCALES) if name.endswith(BLOCKS) else None
        if scales is None or (blocks.kind, scales.kind) != ("U8", "U8"):
            continue
        if not scales.shape or blocks.shape != (*scales.shape, GROUP_BYTES) or not _whole(blocks, scales):
            continue
        shape = (*scales.shape[:-1], scales.shape[-1] * GROUP)
        found[name] = replace(blocks, kind=KIND, shape=shape, scales=scales)
        del found[name.removesuffix(BLOCKS) + SCALES]
    return found


def _whole(*tensors: StoredTensor) -> bool:
    """Whether their bytes are as many as their shapes say."""
    return all(np.prod(each.shape, dtype=object) == each.end - each.begin for each in tensors)


def decoded(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Values [rows, 32 * groups] of blocks [rows, 16 * groups] and scales [rows, groups]."""
    rows, groups = scales.shape
    values = np.empty((rows, groups, GROUP_BYTES, 2), dtype=np.float32)
    packed = blocks.reshape(rows, groups, GROUP_BYTES)
    values[..., 0], values[..., 1] = VALUES[packed & 15], VALUES[packed >> 4]
    exponents = scales.astype(np.int32)[..., None, None] - 127
    scaled: NDArray[np.float32] = np.ldexp(values, exponents)
    return scaled.reshape(rows, groups * GROUP)
