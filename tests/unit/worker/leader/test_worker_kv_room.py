"""The leader limits its KV cache while the host's memory is short, and heartbeats report what is left."""

import asyncio

import pytest

from services.worker.domain.blocks.cache_room import QUIET_S
from services.worker.domain.blocks.pool import blocks_for
from services.worker.domain.blocks.transfer_costs import TransferCostModel
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.leader.engine_state import EngineState
from services.worker.leader.kv_room import GROWTH_TOKENS, KVLimitCalls, KVRoom
from services.worker.rank_protocol.engine_info import EngineInfo, RankInfo
from services.worker.rank_protocol.plan import BLOCK_SIZE
from shared.bus.api import Message
from shared.errors import Unavailable
from shared.messages import KVLimited, LimitKV
from tests.kits.engine.rank_threads import GREEDY
from tests.kits.worker.leader import null_engine
from tests.kits.worker.options import scheduler_limits

MIB = 1 << 20
TOTAL = 8192 * MIB  # margins of 256 and 512 MiB
NUM_BLOCKS, CONTEXT = 1024, 640


class Machine:
    """A group on a machine whose memory and clock a test sets."""

    def __init__(self, block_bytes: int = MIB) -> None:
        self.now_s, self.available = 100.0, TOTAL
        limits = scheduler_limits(64, 8, 8)
        costs = TransferCostModel(64)
        self.state = EngineState(
            null_engine(), limits, "tenant", CONTEXT, costs, adapter_bytes=0, clock=lambda: self.now_s
        )
        self.info = EngineInfo(
            num_blocks=NUM_BLOCKS,
            vocab_size=256,
            context_length=CONTEXT,
            fingerprint="f",
            block_bytes=block_bytes,
            ranks=[RankInfo(rank=0, pid=1, load_s=0.0, loaded_bytes=0, peak_rss_bytes=0)],
        )
        self.scheduler = self.state.begin_start(self.info)
        self.room = KVRoom(self.state, lambda: self.available, lambda: TOTAL)

    def second(self, available: int) -> int:
        """Adjusts a second later; returns the limit."""
        self.now_s += 1.0
        self.available = available
        self.room.adjust()
        return self.scheduler.blocks.limit

    def fill(self) -> None:
        """Caches content in all blocks."""
        blocks = self.scheduler.blocks
        blocks.allocate(1, NUM_BLOCKS * BLOCK_SIZE)
        blocks.register(1, 0, [b"%d" % number for number in range(NUM_BLOCKS)])
        blocks.release(1)


def test_it_gives_memory_back_until_there_is_enough_and_takes_it_later() -> None:
    machine = Machine()
    machine.fill()
    assert machine.second(TOTAL) == NUM_BLOCKS
    assert not machine.state.work.is_set()
    assert machine.second(184 * MIB) == NUM_BLOCKS - 200
    assert machine.state.work.is_set()  # the next plan tells the ranks
    vacated = machine.scheduler.plan().vacate
    assert sum(end - first for first, end in vacated) == 200
    blocks = machine.scheduler.blocks
    assert (blocks.num_free, blocks.num_cached) == (NUM_BLOCKS - 200, NUM_BLOCKS - 200)
    for _ in range(8):
        machine.second(0)
    assert blocks.limit == blocks_for(CONTEXT)
    machine.now_s += QUIET_S
    for _ in range(20):
        machine.second(TOTAL)
    assert (blocks.limit, blocks.num_free) == (NUM_BLOCKS, NUM_BLOCKS)


def test_a_limit_that_is_set_holds_until_it_is_lifted() -> None:
    machine = Machine()
    machine.fill()
    blocks = machine.scheduler.blocks
    machine.room.set_kv_limit(500)
    assert blocks.limit == 500 <= blocks.num_cached < 508  # a region has eight blocks
    assert machine.second(TOTAL) == 500
    assert machine.second(0) < 500  # memory that is short counts as well
    machine.now_s += QUIET_S
    for _ in range(20):
        machine.second(TOTAL)
    assert blocks.limit == 500
    machine.room.set_kv_limit(None)
    assert blocks.limit == NUM_BLOCKS


def running(machine: Machine, number: int, num_tokens: int, max_tokens: int) -> Sequence:
    """A sequence that runs."""
    sequence = Sequence(str(number), 0, [number] * num_tokens, num_tokens, max_tokens, GREEDY)
    sequence.enqueued_as(number)
    machine.scheduler.add(sequence)
    machine.scheduler.plan()
    assert sequence.phase is SequencePhase.RUNNING
    return sequence


def asked(machine: Machine, limit_bytes: int) -> KVLimited:
    message = Message("ryz.v1.kv.limit.g0", b"")
    limit = LimitKV(group="g0", limit_bytes=limit_bytes)
    return asyncio.run(KVLimitCalls("g0", machine.room).limit_kv(limit, message))


def test_asked_on_the_bus_it_answers_with_what_holds_and_what_is_needed() -> None:
    machine = Machine()
    assert asked(machine, 0) == KVLimited(
        group="g0",
        limit_bytes=NUM_BLOCKS * MIB,
        most_bytes=NUM_BLOCKS * MIB,
        most_tokens=NUM_BLOCKS * BLOCK_SIZE,
        least_bytes=CONTEXT // BLOCK_SIZE * MIB,
    )
    assert asked(machine, 500 * MIB + 1).limit_bytes == 500 * MIB
    assert asked(machine, 1).limit_bytes == CONTEXT // BLOCK_SIZE * MIB
    assert asked(machine, 0).limit_bytes == NUM_BLOCKS * MIB


def test_a_limit_leaves_running_requests_what_they_hold_and_need_soon() -> None:
    machine = Machine()
    sequences = [running(machine, number, 600, max_tokens) for number, max_tokens in ((1, 500), (2, 40))]
    soon = blocks_for(600 + GROWTH_TOKENS) + blocks_for(640)
    held = asked(machine, 50 * MIB)
    assert (held.limit_bytes, held.needed_bytes) == (soon * MIB, soon * MIB)
    assert machine.scheduler.blocks.bound == soon
    assert asked(machine, 50 * MIB).limit_bytes == soon * MIB
    machine.scheduler.end(sequences[0])
    assert asked(machine, soon * MIB).limit_bytes == soon * MIB
    assert asked(machine, 50 * MIB).limit_bytes == 50 * MIB
    assert asked(machine, 45 * MIB).limit_bytes == 45 * MIB  # of the one that still runs


def test_a_group_that_keeps_its_memory_or_is_down_has_no_limit() -> None:
    assert asked(Machine(block_bytes=0), MIB) == KVLimited(group="g0")
    machine = Machine()
    machine.state.end_start()
    with pytest.raises(Unavailable):
        asked(machine, MIB)


def test_the_limit_outlives_a_restart_of_the_engine() -> None:
    machine = Machine()
    machine.fill()
    machine.second(0)
    limit = machine.second(0)
    machine.scheduler = machine.state.begin_start(machine.info)
    assert machine.second(400 * MIB) == limit < NUM_BLOCKS


@pytest.mark.parametrize("is_up", [False, True])
def test_an_engine_that_is_down_or_keeps_its_memory_is_left_alone(is_up: bool) -> None:
    machine = Machine(block_bytes=0)
    if not is_up:
        machine.state.end_start()
    assert machine.second(0) == NUM_BLOCKS
    assert machine.state.set_kv_limit(NUM_BLOCKS) == NUM_BLOCKS
