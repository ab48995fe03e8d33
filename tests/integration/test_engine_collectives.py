"""One contract, two backends, two and four processes: shared memory and Gloo behave alike."""

import asyncio
import os
import pickle
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from services.worker.domain.rank_messages import Kind, RankConfig, pack_frame, shared_bytes
from services.worker.orchestrator.process_group_manager import ProcessGroupManager
from tests.engine_collectives_rank import SIZES, values_of

COMMAND = (sys.executable, "-m", "tests.engine_collectives_rank")
TIMEOUT_S = 3.0


@pytest.fixture(
    scope="module", params=[("shm", 2), ("shm", 4), ("gloo", 2), ("gloo", 4)], ids=lambda p: f"{p[0]}-{p[1]}"
)
def outcomes(request: pytest.FixtureRequest) -> Iterator[list[dict[str, Any]]]:
    """What each rank saw, rank 0 first."""
    backend, world = request.param
    manager = ProcessGroupManager(COMMAND)
    with ExitStack() as stack:
        shared = os.memfd_create("test")
        stack.callback(os.close, shared)
        os.ftruncate(shared, shared_bytes(world))
        meeting = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        config = RankConfig(
            model="",
            rank=0,
            world=world,
            threads=1,
            collectives=backend,
            start_timeout_s=30,
            step_timeout_s=TIMEOUT_S,
            shared_fd=shared,
            store_fd=meeting.fileno(),
            store_host="127.0.0.1",
            store_port=meeting.getsockname()[1],
        )
        ranks = manager.spawn(world, 1, [shared, meeting.fileno()])
    for rank in ranks:
        rank.sock.setblocking(True)
        rank.sock.settimeout(40)
        rank.sock.sendall(pack_frame(Kind.CONFIG, msgspec.structs.replace(config, rank=rank.rank)))
    try:
        yield [pickle.loads(_read_all(rank.sock)) for rank in ranks]
    finally:
        asyncio.run(manager.stop(2.0))


def _read_all(sock: socket.socket) -> bytes:
    received = bytearray()
    while data := sock.recv(1 << 20):
        received += data
    return bytes(received)


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
    for turn, rows in enumerate(gathered):
        expected = torch.tensor([float(100 * turn + rank) for rank in range(world)])
        assert torch.equal(rows, expected.unsqueeze(1).expand(world, 2000))
    assert torch.equal(total, torch.full((10,), float(world)))


def test_broadcast_takes_what_rank_0_says(outcomes: list[dict[str, Any]]) -> None:
    assert [outcome["_broadcast"] for outcome in outcomes] == [[b"hello", b""]] * len(outcomes)
    assert all("1024" in outcome["_too_large"] for outcome in outcomes)


def test_nobody_leaves_a_barrier_before_all_came(outcomes: list[dict[str, Any]]) -> None:
    last = max(outcome["_barrier"][0] for outcome in outcomes)
    assert all(outcome["_barrier"][1] >= last for outcome in outcomes)


def test_a_rank_that_stays_away_is_an_error_in_time(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes[:-1]:
        message, seconds = outcome["_hang"]
        assert "rank" in message
        assert seconds < TIMEOUT_S + 2
    assert all(outcome["seconds"] > 0 for outcome in outcomes)
