"""The same tests of collectives over shared memory and over Gloo, with two and four processes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kits.engine.collectives.launch import TIMEOUT_S, ranks_outcomes
from tests.kits.engine.collectives.rank import SIZES, values_of


@pytest.fixture(
    scope="module",
    params=[("shm", 2), ("shm", 4), ("gloo", 2), ("gloo", 4), ("gloo-tcp", 2)],
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def outcomes(request: pytest.FixtureRequest) -> Iterator[list[dict[str, Any]]]:
    """The results of each rank, by rank."""
    with ranks_outcomes(*request.param) as found:
        yield found


def _ordered_sum(parts: list[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def test_sums_are_in_rank_order_and_the_same_bits_everywhere(outcomes: list[dict[str, Any]]) -> None:
    for index, size in enumerate(SIZES):
        expected = _ordered_sum([values_of(rank, size) for rank in range(len(outcomes))])
        for outcome in outcomes:
            assert torch.equal(outcome["_sums"][index], expected)


def test_bf16_is_summed_in_fp32_and_rounded_once(outcomes: list[dict[str, Any]]) -> None:
    if outcomes[0]["_half_sums"] is None:
        pytest.skip("shared memory is for fp32")
    parts = [values_of(rank, 500).to(torch.bfloat16) for rank in range(len(outcomes))]
    expected = _ordered_sum([part.float() for part in parts]).to(torch.bfloat16)
    if len(outcomes) > 2:
        assert not torch.equal(expected, _ordered_sum(parts)), "rounding at each step would be seen"
    for outcome in outcomes:
        assert torch.equal(outcome["_half_sums"], expected)


def test_a_matrix_is_summed_in_place(outcomes: list[dict[str, Any]]) -> None:
    total = float(sum(range(len(outcomes))))
    for outcome in outcomes:
        assert torch.equal(outcome["_matrix_in_place"], torch.full((3, 5), total))


def test_gathers(outcomes: list[dict[str, Any]]) -> None:
    expected = torch.stack([values_of(rank, 12).view(3, 4) for rank in range(len(outcomes))])
    for rank, outcome in enumerate(outcomes):
        everywhere, at_first = outcome["_gathers"]
        assert torch.equal(everywhere, expected)
        assert torch.equal(at_first, expected) if rank == 0 else at_first is None


def test_a_slow_reader_loses_nothing(outcomes: list[dict[str, Any]]) -> None:
    world = len(outcomes)
    *gathered, total = outcomes[0]["_slow_reader"]
    assert len(gathered) == 12
    for number, rows in enumerate(gathered):
        expected = torch.tensor([float(100 * number + rank) for rank in range(world)])
        assert torch.equal(rows, expected.unsqueeze(1).expand(world, 2000))
    assert torch.equal(total, torch.full((10,), float(world)))


def test_broadcast_takes_what_rank_0_says(outcomes: list[dict[str, Any]]) -> None:
    assert [outcome["_broadcast"] for outcome in outcomes] == [[b"hello", b""]] * len(outcomes)
    assert all("1024" in outcome["_too_large"] for outcome in outcomes)


def test_no_rank_leaves_a_barrier_before_all_came(outcomes: list[dict[str, Any]]) -> None:
    last = max(outcome["_barrier"][0] for outcome in outcomes)
    assert all(outcome["_barrier"][1] >= last for outcome in outcomes)


def test_a_rank_that_stays_away_is_an_error_in_time(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes[:-1]:
        message, seconds = outcome["_hang"]
        assert "rank" in message
        assert seconds < TIMEOUT_S + 2
    assert all(outcome["seconds"] > 0 for outcome in outcomes)
