"""Adapters of many families give what PEFT gives, over ranks and in mixed batches.

`RYZ_CHAOS=full` tries all ranks of adapters with each family and number of ranks; otherwise they rotate.
"""

import os

import pytest

from tests.kits.adapters.comparisons import RANKS, TARGETS, check_mixed_adapters, check_same_bits
from tests.kits.engine.rank_threads import plain_compute
from tests.kits.families.comparisons import tiled_compute

FULL = os.environ.get("RYZ_CHAOS") == "full"
ROTATED = [(name, RANKS[at % 4], 1 + (at // 2) % 2) for at, name in enumerate(TARGETS)]
EVERYTHING = [(name, rank, world) for name in TARGETS for rank in RANKS for world in (1, 2)]


@pytest.mark.parametrize(("family", "rank", "world"), EVERYTHING if FULL else ROTATED)
def test_logits_equal_those_of_peft(family: str, rank: int, world: int) -> None:
    check_mixed_adapters(family, rank, world, tiled_compute)


@pytest.mark.parametrize("family", list(TARGETS) if FULL else ["llama", "phi3"])
def test_untiled_steps_equal_peft(family: str) -> None:
    check_mixed_adapters(family, 16, 2, plain_compute)


@pytest.mark.parametrize(
    ("family", "rank", "world"),
    EVERYTHING if FULL else [("llama", 4, 1), ("llama", 64, 2), ("gpt2", 16, 2)],
)
def test_bits_do_not_depend_on_who_shares_the_batch(family: str, rank: int, world: int) -> None:
    check_same_bits(family, rank, world, tiled_compute)
