"""How much memory the kernels take for a weight of a quantized type. Imports no torch.

Codes of 3 bits are stored in 4, of 5 and 6 bits in 8. A scale of two levels is held as one fp32, exactly.
"""

from collections.abc import Iterable
from math import prod
from typing import Protocol

from services.worker.engine.checkpoint.stored_tensor import PackedParts

FLOAT_BYTES = 4  # of types that are held as floats
_SCALE, _WIDE = 2, 4
# by the name of a type in GGUF files
CODE_BYTES = {
    "Q4_0": 1 / 2 + _SCALE / 32,
    "Q4_1": 1 / 2 + 2 * _SCALE / 32,
    "Q5_0": 1 + _SCALE / 32,
    "Q5_1": 1 + 2 * _SCALE / 32,
    "Q8_0": 1 + _SCALE / 32,
    "Q2_K": 1 / 4 + 2 * _WIDE / 16,
    "Q3_K": 1 / 2 + _WIDE / 16,
    "Q4_K": 1 / 2 + 2 * _WIDE / 32,
    "Q5_K": 1 + 2 * _WIDE / 32,
    "Q6_K": 1 + _WIDE / 16,
    "TQ1_0": 1 / 4 + _SCALE / 256,
    "TQ2_0": 1 / 4 + _SCALE / 256,
    "IQ4_NL": 1 / 2 + _SCALE / 32,
    "IQ4_XS": 1 / 2 + _WIDE / 32,
    "MXFP4": 1 / 2 + _SCALE / 32,
}


class StoredMatrix(Protocol):
    """What this module asks of a `StoredTensor`."""

    @property
    def kind(self) -> str:
        """The format's name of its type."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        ...

    @property
    def item_bytes(self) -> int:
        """Bits of a value, as ranks hold it as a float."""
        ...

    @property
    def packed(self) -> PackedParts | None:
        """Bits of a value in a matrix of packed integers."""
        ...


def bytes_of(tensor: StoredMatrix) -> float:
    """Bits of a weight, as the kernels store it with the precision `codes`."""
    if tensor.packed is not None:
        return tensor.packed.item_bytes
    return CODE_BYTES.get(tensor.kind, tensor.item_bytes)


def mean_bytes(tensors: Iterable[StoredMatrix]) -> float:
    """The mean over the weights of all matrices."""
    counted = [(prod(one.shape), bytes_of(one)) for one in tensors if len(one.shape) > 1]
    total = sum(count for count, _ in counted)
    return sum(count * each for count, each in counted) / total if total else FLOAT_BYTES
