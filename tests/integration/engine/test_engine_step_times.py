"""What the ranks of a running engine record of their steps, on the leader's clock."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cli.profile.profile_file import TimedRecording, profile_file
from services.worker.leader.profiling.profiler import recorded_rank
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.trace_messages import RankTrace
from shared.host.own_python import module_command, module_environment
from shared.messages import GroupRecording
from shared.telemetry.clock_estimate import ClockOffset
from tests.kits.chrome_tracks import nested
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import Blocks, make_llama, new_sequence
from tests.kits.waiting import PATIENCE_S


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[RankEngine]:
    engine = RankEngine(
        rank_options(model=make_llama(tmp_path), tensor_parallel=2, threads=1, kv_cache_tokens=8192)
    )
    await engine.start()
    yield engine
    await engine.stop()


def plan(step_id: int, blocks: Blocks) -> StepPlan:
    """A prompt of 100 tokens."""
    prompt = [*range(3, 103)]
    return StepPlan(
        step_id=step_id, admit=[new_sequence(step_id, prompt)], chunks=[blocks.chunk(step_id, 0, prompt)]
    )


async def test_each_rank_records_its_steps_by_kind_on_the_clock_of_the_leader(engine: RankEngine) -> None:
    times = engine.step_times()
    assert times is not None
    begun_ns = time.monotonic_ns()
    blocks = Blocks(512)
    for step_id in range(1, 5):
        result = await engine.submit(plan(step_id, blocks))
        ended_ns = time.monotonic_ns()
        first = times.read_step(0, step_id)
        assert first is not None
        assert begun_ns <= first.begin_ns <= first.end_ns <= ended_ns
        assert first.parts.linears == pytest.approx(result.linears_s * 1e9, abs=2)
        assert first.parts.linears > 0
        assert first.parts.collectives > 0
        assert sum(first.parts) <= first.end_ns - first.begin_ns
        assert first.idle_ns == pytest.approx(result.wait_s * 1e9, abs=2)
        begun_ns = ended_ns
    await engine.stop()  # the ranks have ended, and their records can be read
    both = times.read_step_of_all(4)
    assert [one.rank for one in both] == [0, 1]
    # the ranks leave the last all-reduce together, so their steps overlap
    assert max(one.begin_ns for one in both) < min(one.end_ns for one in both)
    assert [times.read_totals(rank).steps for rank in (0, 1)] == [4, 4]


async def test_a_recording_has_every_op_of_every_rank_on_one_clock(engine: RankEngine) -> None:
    times, blocks, tracing = engine.step_times(), Blocks(512), engine.tracing
    assert times is not None
    await engine.submit(plan(1, blocks))
    tracing.begin(5.0, 100_000)
    for step_id in range(2, 12):
        await engine.submit(plan(step_id, blocks))
    pinged_ns = time.monotonic_ns()
    await tracing.ping_all()
    found = await tracing.collect()
    pinged_ns = time.monotonic_ns() - pinged_ns
    await engine.submit(plan(12, blocks))  # not recorded any more
    assert [one.rank for one in found] == [0, 1]
    # both ranks are on the leader's host, so their clock is the leader's: the pings check that
    clocks = [one.clock for one in found if one.clock is not None]
    assert len(clocks) == 2
    for clock in clocks:
        assert abs(clock.offset_ns) <= clock.error_ns
        assert clock.error_ns < max(5_000_000, pinged_ns)  # what a busy machine keeps an answer back is in it
    for one in found:
        trace = msgspec.msgpack.decode(one.trace, type=RankTrace)
        assert trace.left_out == 0
        phases = np.frombuffer(trace.phases, np.int64).reshape(-1, 7)
        assert phases[:, 0].tolist() == [*range(2, 12)]
        assert (np.diff(phases[:, 1:]) >= 0).all()  # each phase begins when the one before ends
        spans = np.frombuffer(trace.spans, np.int64).reshape(-1, 4)
        assert len(spans) == len(phases) * (len(trace.ops) - 1)  # one thread; logits need no gather here
        assert (spans[:, 2] >= spans[:, 1]).all()
        assert (spans[1:, 1] >= spans[:-1, 2]).all()
        kinds = np.array([trace.ops[position][1] for position in spans[:, 3]])
        layers = {trace.ops[position][2] for position in spans[:, 3]}
        assert layers == {-1, 0, 1, 2}
        for step in phases[1:]:
            record = times.read_step(one.rank, int(step[0]))
            assert record is not None
            inside = (spans[:, 1] >= step[2]) & (spans[:, 2] <= step[3])
            for kind in ("linears", "attention", "collectives"):
                own = spans[inside & (kinds == kind)]
                spent = int((own[:, 2] - own[:, 1]).sum())
                # a barrier of threads comes between two ops, and the tokens' broadcast is a collective too
                assert spent <= getattr(record.parts, kind) + 2000
                assert spent >= 0.5 * getattr(record.parts, kind) or kind == "collectives"


async def test_the_file_of_a_profile_shows_all_ranks_each_op_inside_its_step(engine: RankEngine) -> None:
    blocks, tracing = Blocks(512), engine.tracing
    began_ns = time.monotonic_ns()
    tracing.begin(5.0, 100_000)
    for step_id in range(1, 9):
        await engine.submit(plan(step_id, blocks))
    ranks = [recorded_rank(one) for one in await tracing.collect()]
    recording = GroupRecording(
        group="g0", instance_id="i", model="m", pid=1, began_ns=began_ns, ended_ns=time.monotonic_ns(),
        unix_ns=0, ranks=ranks,
    )  # fmt: skip
    found = profile_file([TimedRecording(recording, ClockOffset(0, 0))])
    tracks = nested(found.events)
    # a thread for each rank; of the collectives, who was last to each, and a row for each rank
    assert set(tracks) == {(2, 1), (3, 1), (100, 1), (100, 2), (100, 3)}
    assert len(tracks[100, 1]) == 8
    assert all(1 <= sum(name == "exchange" for name, _ in tracks[100, row]) <= 64 for row in (2, 3))
    one, other = ([name for name, depth in tracks[pid, 1] if depth == 2] for pid in (2, 3))
    assert one == other  # the same ops in the same order
    spans = [event for event in found.events if event["ph"] == "X" and event["pid"] == 2]
    shares = list[float]()
    for step in (event for event in spans if event["cat"] == "step"):
        begin, end = step["ts"], step["ts"] + step["dur"]
        inside = [one for one in spans if begin <= one["ts"] < end and one is not step]
        phases = {one["name"]: one["dur"] for one in inside if one["cat"] == "phase"}
        ops_us = sum(one["dur"] for one in inside if one["cat"] not in {"phase", "step"})
        assert sum(phases.values()) == pytest.approx(step["dur"], abs=1.0)
        assert ops_us <= phases["forward"]
        shares.append(ops_us / phases["forward"])
    assert max(shares) > 0.2  # the rest prepares indices, or waits for a core
    # no rank leaves a collective before the other has entered it, which bounds their clocks
    (clock,) = [one for one in found.clocks if "collectives" in one["by"]]
    assert clock["by"] == "64 collectives"  # embedding, two in each of three layers, logits; of eight steps
    assert abs(clock["ahead_us"]) <= clock["error_us"] + 0.001


async def test_a_recording_ends_with_the_ranks(engine: RankEngine) -> None:
    engine.tracing.begin(5.0, 1000)
    collecting = asyncio.create_task(engine.tracing.collect())
    await asyncio.sleep(0)  # the orders are sent
    await engine.stop()
    found = await asyncio.wait_for(collecting, PATIENCE_S)
    assert [bool(one.trace) or "ended during the profile" in one.problem for one in found] == [True, True]


async def test_a_rank_of_another_host_tells_of_its_steps_with_a_bound_of_its_clock(tmp_path: Path) -> None:
    model, token = make_llama(tmp_path), "a secret of this test"
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    engine = RankEngine(
        rank_options(
            model=model, tensor_parallel=2, threads=1, kv_cache_tokens=8192, remote_ranks=1,
            rank_listen=address, rank_token=token,
        )
    )  # fmt: skip
    command = [*module_command("services.worker.engine"), "--join", address, "--model", str(model)]
    environment = {**module_environment(os.environ), "RYZ_RANK_TOKEN": token}
    joined = await asyncio.create_subprocess_exec(*command, "--threads", "1", "--once", env=environment)
    try:
        await engine.start()
        times, blocks = engine.step_times(), Blocks(512)
        assert times is not None
        for step_id in range(1, 4):
            await engine.submit(plan(step_id, blocks))
        for _ in range(200):
            if len(times.read_step_of_all(3)) == 2:  # they come with the answer to a ping
                break
            await asyncio.sleep(0.05)
        here, there = times.read_step_of_all(3)
        assert here.clock_error_ns == 0 < there.clock_error_ns
        # the host is this one, so the clocks are the same: the steps overlap but for the error
        assert there.begin_ns - there.clock_error_ns < here.end_ns
        assert here.begin_ns - there.clock_error_ns < there.end_ns
        assert times.read_totals(1).steps == 3
        await engine.tracing.ping_all()
        engine.tracing.begin(5.0, 1000)
        await engine.submit(plan(4, blocks))
        _, traced = await engine.tracing.collect()
        assert traced.clock is not None
        assert abs(traced.clock.offset_ns) <= traced.clock.error_ns < 50_000_000
        assert traced.trace
    finally:
        await engine.stop()
        with suppress(ProcessLookupError):  # it ends with its leader
            joined.kill()
        await joined.wait()
