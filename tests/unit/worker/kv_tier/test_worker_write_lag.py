"""How long blocks of the host tier wait for the store."""

import pytest

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.engine.kv_transfer.write_lag import QUIET_S, WriteLag
from tests.kits.worker.options import scheduler_limits

LAG_S, MOST = 2.0, 8


@pytest.fixture
def lag() -> WriteLag:
    lag = WriteLag(LAG_S, MOST)
    lag.note_step(10.0)
    return lag


def test_a_block_waits_until_decoding_ends(lag: WriteLag) -> None:
    assert lag.wait_s(10.0, 1, 10.0) == pytest.approx(QUIET_S)
    lag.note_step(10.04)
    assert lag.wait_s(10.0, 1, 10.05) == pytest.approx(0.04)
    assert lag.wait_s(10.0, 1, 10.04 + QUIET_S) == 0


def test_a_block_waits_no_longer_than_the_lag(lag: WriteLag) -> None:
    lag.note_step(11.99)
    assert lag.wait_s(10.0, 1, 11.99) == pytest.approx(0.01)
    lag.note_step(12.0)
    assert lag.wait_s(10.0, 1, 12.0) == 0
    assert lag.wait_s(11.0, 1, 12.0) == pytest.approx(QUIET_S)


def test_only_so_many_blocks_wait(lag: WriteLag) -> None:
    assert lag.wait_s(10.0, MOST - 1, 10.0) > 0
    assert lag.wait_s(10.0, MOST, 10.0) == 0


def test_what_waits_when_there_is_hurry_goes_at_once(lag: WriteLag) -> None:
    lag.hurry(10.01)
    assert lag.wait_s(10.0, 1, 10.01) == 0
    assert lag.wait_s(10.02, 1, 10.02) > 0


def test_without_a_lag_nothing_waits() -> None:
    lag = WriteLag(0.0, MOST)
    lag.note_step(10.0)
    assert lag.wait_s(10.0, 1, 10.0) == 0


@pytest.mark.parametrize("hurries", [False, True])
def test_plans_tell_the_ranks_of_a_hurry(hurries: bool) -> None:
    behind = WriteBehind()
    limits = scheduler_limits(token_budget=64, max_running=8, max_waiting=8)
    scheduler = Scheduler(BlockManager(8), limits, BlockNames("f", "fp32"), write_behind=behind)
    behind.hurries = hurries
    assert scheduler.plan().hurry is hurries
