"""The log of engine steps: what the leader and the ranks record, and how it is read while they write."""

import mmap
import os
import subprocess
import sys

import pytest

from services.worker.leader.step_log import StepLog, count_tokens
from services.worker.rank_protocol.plan import ScheduledChunk, StepPlan
from services.worker.rank_protocol.step_times import (
    HEADER_BYTES,
    NO_PARTS,
    SLOTS,
    PartsOfStep,
    RankStep,
    RunningStep,
    StepTimes,
    private_times,
    times_bytes,
)
from shared.host.own_python import module_environment
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, null_engine

PARTS = PartsOfStep(linears=40, attention=20, collectives=10, sampling=5, masks=3, kv_copy=2)


def add_step(log: StepLog, step_id: int, begin_ns: int) -> None:
    """A step that is planned at that time, and done 30 ns later."""
    log.add(step_id, (begin_ns, begin_ns + 3, begin_ns + 5, begin_ns + 30), 4, 0, 4)
    log.note_booked(begin_ns + 35)


def test_steps_between_two_moments_are_those_that_ran_at_some_moment_between_them() -> None:
    log, (times, writers) = StepLog(), private_times(2)
    log.begin_start(times)
    for step_id in range(1, 6):
        for writer in writers:
            writer.write_step(step_id, step_id * 100 + 10, step_id * 100 + 25, PARTS, 60)
        add_step(log, step_id, step_id * 100)
    assert [one.step.step_id for one in log.steps_between(0, 10_000)] == [1, 2, 3, 4, 5]
    assert [one.step.step_id for one in log.steps_between(330, 400)] == [3, 4]
    assert [one.step.step_id for one in log.steps_between(331, 399)] == []
    assert [one.step.step_id for one in log.steps_between(0, 10_000, limit=2)] == [4, 5]
    record = log.steps_between(200, 200)[0]
    assert record.step == (1, 2, 200, 205, 230, 235, 4, 0, 4, 203)
    assert record.ranks == [RankStep(rank, 210, 225, PARTS, 60) for rank in (0, 1)]


def test_a_rank_that_is_behind_or_has_written_over_a_step_is_left_out() -> None:
    times, (first, second) = private_times(2)
    first.write_step(7, 1, 2, PARTS, 0)
    assert [one.rank for one in times.read_step_of_all(7)] == [0]
    second.write_step(7, 1, 2, PARTS, 0)
    first.write_step(7 + SLOTS, 3, 4, PARTS, 0)
    assert [one.rank for one in times.read_step_of_all(7)] == [1]


def test_the_counters_hold_what_the_ring_has_forgotten_and_go_on_over_a_restart() -> None:
    log, (times, (writer,)) = StepLog(), private_times(1)
    log.begin_start(times)
    for step_id in range(SLOTS + 10):
        writer.begin_step(step_id, 0)
        writer.write_step(step_id, 0, 700_000, PARTS, 9)
        writer.count_step(0, 700_000, PARTS, 9)
    assert times.read_running(0) is None
    writer.begin_step(5000, 77)
    assert times.read_running(0) == RunningStep(5000, 77)
    count = SLOTS + 10
    again, (writer,) = private_times(1)
    log.begin_start(again)
    writer.count_step(0, 60_000_000_000, PARTS, 1)
    totals = log.totals(0)
    assert totals[:2] == (count + 1, 700_000 * count + 60_000_000_000)
    assert totals.parts == tuple(part * (count + 1) for part in PARTS)
    assert totals.idle_ns == 9 * count + 1
    assert (totals.buckets[1], totals.buckets[-1], sum(totals.buckets)) == (count, 1, count + 1)
    log.begin_start(None)  # an engine that records nothing
    assert (log.totals(0), log.world) == (totals, 0)


def test_steps_of_an_earlier_start_keep_their_ranks_for_one_restart() -> None:
    log = StepLog()
    for start in (1, 2, 3):
        times, (writer,) = private_times(1)
        log.begin_start(times)
        writer.write_step(1, start, start, NO_PARTS, 0)
        add_step(log, 1, start * 1000)
    found = log.steps_between(0, 10_000)
    assert [(one.step.start, [rank.begin_ns for rank in one.ranks]) for one in found] == [
        (1, []), (2, [2]), (3, [3]),
    ]  # fmt: skip


def test_shared_memory_of_an_earlier_start_is_given_back() -> None:
    """What is mapped has an open descriptor: after a restart a leader had one more than before."""
    log, shared = StepLog(), mmap.mmap(-1, times_bytes(1))
    times = StepTimes(memoryview(shared), 1)
    log.begin_start(times)
    times.writer(0).write_step(1, 5, 6, NO_PARTS, 0)
    add_step(log, 1, 0)
    log.begin_start(private_times(1)[0])
    del times
    shared.close()  # a BufferError as long as something reads it
    assert [rank.begin_ns for rank in log.steps_between(0, 100)[0].ranks] == [5]


def test_a_page_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="too small for 2 ranks"):
        StepTimes(memoryview(bytearray(times_bytes(1))), 2)


WRITER = """
import mmap, sys
from services.worker.rank_protocol.step_times import SLOTS, PartsOfStep, StepTimesWriter, times_bytes
writer = StepTimesWriter(memoryview(mmap.mmap(int(sys.argv[1]), times_bytes(1))), 0)
for turn in range(int(sys.argv[2])):
    number = turn * SLOTS  # all in one slot
    writer.write_step(number, number, number, PartsOfStep(*[number] * 6), number)
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory without a name, of Linux")
def test_no_record_is_torn_while_another_process_writes_it() -> None:
    """All numbers of a record are its step's, so a mixture of two records would show."""
    count, file = 60_000, os.memfd_create("times")
    os.ftruncate(file, times_bytes(1))
    page = memoryview(mmap.mmap(file, times_bytes(1)))
    times, words = StepTimes(page, 1), page.cast("q")
    command = [sys.executable, "-P", "-c", WRITER, str(file), str(count)]
    seen = 0
    with subprocess.Popen(command, pass_fds=[file], env=module_environment(os.environ)) as process:
        os.close(file)
        while process.poll() is None:
            turn = max(0, words[HEADER_BYTES // 8] - 1) // SLOTS
            one = times.read_step(0, turn * SLOTS)
            if one is not None:
                seen += 1
                assert {one.begin_ns, one.end_ns, one.idle_ns, *one.parts} == {turn * SLOTS}
    assert process.returncode == 0
    assert times.read_step(0, (count - 1) * SLOTS) is not None
    assert seen > 10


def test_tokens_of_a_plan_are_those_of_decodes_and_of_prompts() -> None:
    decode = ScheduledChunk(seq_id=1, start=9, token_ids=[], follow=True, sample=True)
    tail = ScheduledChunk(seq_id=2, start=9, token_ids=[4], sample=True)
    part = ScheduledChunk(seq_id=3, start=0, token_ids=[1] * 30)
    assert count_tokens(StepPlan(step_id=1, chunks=[decode, tail])) == (2, 0)
    assert count_tokens(StepPlan(step_id=1, chunks=[decode, part])) == (1, 30)
    assert count_tokens(StepPlan(step_id=1)) == (0, 0)


async def test_the_leader_logs_the_steps_of_a_request(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.002)) as kit:
        await kit.run(chat("r", sampling={"max_tokens": 8}))
        log = kit.leader.parts.engine.step_log
        records = log.steps_between(0, 2**63)
        assert [one.step.step_id for one in records] == sorted(one.step.step_id for one in records)
        assert sum(one.step.decode_tokens for one in records) >= 7
        assert sum(one.step.prefill_tokens for one in records) > 5
        for step, (rank,) in records:
            assert step.planned_ns <= step.submitted_ns <= step.result_ns <= step.booked_ns
            assert step.planned_ns <= rank.begin_ns <= rank.end_ns <= step.submitted_ns
        assert 0 <= log.totals(0).steps - len(records) <= 1  # the last step may be under way
