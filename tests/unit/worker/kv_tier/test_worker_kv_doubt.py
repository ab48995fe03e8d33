"""Blocks believed stored that are missing or damaged, and the cache blocks reserved for fetches."""

import pytest

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.transfer_costs import TransferCostModel
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import BLOCK_SIZE, Sampled, StepResult
from tests.kits.worker.options import scheduler_limits

NAMES = [bytes([at]) * 16 for at in range(1, 7)]


@pytest.fixture
def behind() -> WriteBehind:
    behind = WriteBehind(max_waiting=4)
    behind.enabled = True
    return behind


def write(behind: WriteBehind, names: list[bytes]) -> None:
    blocks = BlockManager(8)
    blocks.allocate(1, len(names) * BLOCK_SIZE)
    blocks.register(1, 0, names)
    behind.add(names)
    behind.done([copy.name for copy in behind.take(blocks)], [])


def test_what_is_in_doubt_stays_so_for_every_finder_until_it_is_written(behind: WriteBehind) -> None:
    write(behind, NAMES[:3])
    behind.distrust(NAMES[1:2])
    behind.found(NAMES[:3])
    assert [behind.num_known_of([name]) for name in NAMES[:3]] == [True, False, True]
    assert behind.num_trusted_of(NAMES) == 1
    behind.add(NAMES[1:2])
    behind.found(NAMES[1:2])
    assert behind.has_work, "it still waits to be written"
    write(behind, NAMES[1:2])
    assert behind.num_trusted_of(NAMES) == len(NAMES)
    assert behind.num_known_of(NAMES) == 3


def test_doubts_are_bounded(behind: WriteBehind) -> None:
    behind.distrust(NAMES)
    assert [behind.num_trusted_of([name]) for name in NAMES] == [1, 1, 0, 0, 0, 0]


def test_what_is_no_longer_there_is_written_when_it_is_computed(behind: WriteBehind) -> None:
    write(behind, NAMES[:2])
    behind.add(NAMES[:2])
    assert behind.take(BlockManager(1)) == []
    behind.unlearn(NAMES[1:])
    behind.add(NAMES[:2])
    assert behind.has_work
    assert behind.num_known_of(NAMES) == 1


def test_blocks_that_come_take_no_more_blocks_than_they_need() -> None:
    blocks = BlockManager(4)
    assert blocks.hold(1, NAMES[:4]) == 0
    assert blocks.num_free == 0
    blocks.register(1, 0, NAMES[:4])
    blocks.release(1)
    blocks.check_invariants()
    assert blocks.hold(2, NAMES[:4]) == 4
    assert blocks.hold(3, NAMES[4:5]) is None
    blocks.release(2)
    blocks.allocate(4, 1)
    assert blocks.num_found(NAMES) == 3, "the end of a beginning goes first"
    assert blocks.hold(5, NAMES[:4]) is None
    blocks.check_invariants()
    with pytest.raises(ValueError, match="table already"):
        blocks.hold(4, [])


def test_blocks_of_a_sequence_without_a_next_token_are_not_taken_from_the_store_again() -> None:
    behind = WriteBehind()
    behind.enabled = True
    names = BlockNames("f")
    scheduler = Scheduler(
        BlockManager(8),
        scheduler_limits(64, 4, 4),
        names,
        write_behind=behind,
        costs=TransferCostModel(64, "always"),
    )

    def ask() -> Sequence:
        return Sequence(
            request_id="a",
            choice=0,
            tokens=[1] * 40,
            prompt_len=40,
            max_tokens=2,
            sampling=EngineSampling(),
            stored=2,
        )

    first = ask()
    scheduler.add(first)
    scheduler.plan()
    (fetch,) = scheduler.take_fetches()
    scheduler.fetched(fetch.fetch_id, 2)
    assert behind.num_known == 2
    plan = scheduler.plan()
    bad = Sampled(seq_id=first.seq_id, token_id=0, error="the logits are not finite")
    scheduler.apply(StepResult(step_id=plan.step_id, sampled=[bad]))
    assert behind.num_known == 0
    scheduler.add(ask())
    plan = scheduler.plan()
    assert scheduler.take_fetches() == []
    assert plan.chunks[0].start == 0
