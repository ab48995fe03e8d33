"""Which linears of a program adapters can add to, and the matrices that each of them consists of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.worker.engine.native.packed_weights import STORED_TYPES, PackedLinear
from services.worker.engine.native.structs.adapters import LinearShape

HEAD = -1, "lm_head"  # layer and module of the output head


class MatrixPart(NamedTuple):
    """A matrix of the model that is some outputs of a linear.

    Attributes:
        module: Its canonical name (`checkpoint/names/canonical.py`).
        outputs: On this rank.
    """

    module: str
    outputs: int


@dataclass(frozen=True, slots=True)
class AdapterSite:
    """A linear that adapters can add to.

    Attributes:
        number: Its index among them.
        layer: Of the model; -1: it is the head.
        parts: Its matrices in the order of its outputs; of a gated linear the first one gates the second.
        exact: The base computes with floats, so an adapter is kept without loss.
    """

    number: int
    layer: int
    parts: tuple[MatrixPart, ...]
    shape: LinearShape
    exact: bool


def adapter_site(number: int, layer: int, parts: Sequence[MatrixPart], weights: PackedLinear) -> AdapterSite:
    """The site of a packed linear."""
    gated = weights.rule.gated != 0
    assert sum(part.outputs for part in parts) == weights.columns * (1 + gated)
    shape = LinearShape(weights.inputs, weights.panels, gated, len(parts))
    return AdapterSite(number, layer, tuple(parts), shape, weights.type in STORED_TYPES.values())
