"""Decides how many bits each unit of each layer gets, so that the files have a given size.

All units begin with the fewest bits. Then those get more whose outputs gain most by it for each byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from services.worker.engine.config.json_fields import ModelError
from training.quantize.grids import Grid

Key = tuple[int, str]  # layer, unit


@dataclass(frozen=True, slots=True)
class UnitCost:
    """What a unit takes and loses with some number of bits.

    Attributes:
        num_bytes: Bytes by the number of bits.
        loss: Share of the energy of its layer's outputs that is lost by rounding it alone, by bits.
    """

    key: Key
    num_bytes: dict[int, int]
    loss: dict[int, float]


def matrix_bytes(outputs: int, inputs: int, grid: Grid) -> int:
    """Return the bytes of a packed matrix."""
    groups = inputs // grid.group
    zeros = 0 if grid.symmetric else -(-outputs * grid.bits // 32) * 4 * groups
    return outputs * inputs * grid.bits // 8 + outputs * groups * grid.scale_type.itemsize + zeros


def choose_bits(costs: Sequence[UnitCost], num_bytes: int) -> dict[Key, int]:
    """Return the bits of each unit.

    Args:
        costs: Of all units, with the same numbers of bits.
        num_bytes: That all units together may take.

    Raises:
        ModelError: They take more even with the fewest bits.
    """
    steps = sorted(costs[0].num_bytes)
    chosen = {one.key: steps[0] for one in costs}
    left = num_bytes - sum(one.num_bytes[steps[0]] for one in costs)
    if left < 0:
        raise ModelError(
            f"--size is {-left:,} bytes too small for {steps[0]} bits in every linear: "
            "give a larger one, a larger --group, or fewer --bits"
        )
    for low, high in pairwise(steps):
        gains = [
            ((one.loss[low] - one.loss[high]) / (one.num_bytes[high] - one.num_bytes[low]), one)
            for one in costs
            if chosen[one.key] == low
        ]
        for _, one in sorted(gains, key=lambda pair: (-pair[0], pair[1].key)):
            more = one.num_bytes[high] - one.num_bytes[low]
            if more <= left:
                left -= more
                chosen[one.key] = high
    return chosen
