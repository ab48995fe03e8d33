"""`ryz profile`: the questions to leaders, and the file that is made of their recordings."""

import asyncio
import json
from array import array
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cli.profile.collective_timeline import collective_timeline
from cli.profile.command import write_profile
from cli.profile.profile_file import TimedRecording, profile_file
from cli.profile.query import HeardLeader, ProfileSession
from cli.profile.rank_rows import clock_of_collectives, rank_rows
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.trace_messages import BlockMove, RankTrace
from shared.messages import GroupRecording, RecordedMessage, RecordedRank
from shared.telemetry.clock_estimate import ClockOffset
from tests.kits.chrome_tracks import nested
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import until
from tests.kits.worker.leader import Kit, chat, null_engine

OPS = [("embed", "rows", -1), ("linear", "linears", 0), ("rank_barrier", "collectives", 0)]
MS = 1_000_000


def recorded_rank(rank: int, late_ns: int = 0, ahead_ns: int = 0) -> RecordedRank:
    """Three steps of 1 ms on two threads.

    Args:
        rank: Its number.
        late_ns: How much later than rank 0 it reaches each collective.
        ahead_ns: How far its clock is ahead, of a rank of another host.
    """
    spans, phases = array("q"), array("q")
    for step_id in range(1, 4):
        begin = step_id * 2 * MS + ahead_ns
        phases.extend((step_id, begin, begin + 1000, begin + 800_000, begin + 800_000, begin + 900_000))
        phases.append(begin + MS)
        entered, left = begin + 500_000 + late_ns, begin + 500_000 + 100_000
        for thread in (0, 1):
            spans.extend((thread, begin + 2000, begin + 9000, 0, thread, begin + 10_000, entered, 1))
        spans.extend((0, entered, left, 2))
    moves = [BlockMove("store", 5 * MS, MS, 3), BlockMove("fetch", 5 * MS + 9, MS, 1)]
    trace = RankTrace(ops=OPS, spans=spans.tobytes(), left_out=0, phases=phases.tobytes(), moves=moves)
    host = "10.0.0.2" if ahead_ns else ""
    return RecordedRank(
        rank=rank, pid=10 + rank, host=host, offset_ns=ahead_ns, error_ns=500,
        trace=msgspec.msgpack.encode(trace),
    )  # fmt: skip


def recording(group: str = "g0", *ranks: RecordedRank) -> GroupRecording:
    """A recording of 10 ms with the steps of `recorded_rank`."""
    steps, rank_steps = array("q"), array("q")
    for step_id in range(1, 4):
        at = step_id * 2 * MS
        steps.extend((1, step_id, at - 90_000, at - 30_000, at + MS, at + MS + 50_000, 3, 0, 3, at - 50_000))
        for rank in ranks:
            rank_steps.extend((step_id, rank.rank, at, at + MS, 40, 30, 20, 10, 0, 0, 5, 0))
    messages = [
        RecordedMessage(subject="ryz.v1.work.g0", outgoing=False, begin_ns=at, length_ns=MS, num_bytes=9)
        for at in (3 * MS, 3 * MS + 500_000)  # the second one begins while the first one is handled
    ]
    return GroupRecording(
        group=group, instance_id=f"i-{group}", model="demo", pid=7, began_ns=MS, ended_ns=11 * MS, unix_ns=0,
        steps=steps.tobytes(), rank_steps=rank_steps.tobytes(), messages=messages,
        late_turns=array("q", [6 * MS, 9 * MS]).tobytes(), ranks=list(ranks),
    )  # fmt: skip


def test_the_file_shows_leader_and_ranks_each_thread_nested() -> None:
    one = TimedRecording(recording("g0", recorded_rank(0), recorded_rank(1)), ClockOffset(0, 0))
    found = json.loads(json.dumps(profile_file([one]).as_dict()))
    events = found["traceEvents"]
    tracks = nested(events)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert set(tracks) <= set(names)
    by_name = {names[track]: [name for name, _ in spans] for track, spans in tracks.items()}
    assert by_name["engine loop"] == ["plan", "submit", "book and publish"] * 3
    assert by_name["event loop late"] == ["late"]
    assert sum(name == "messages in" for name in names.values()) == 2  # they overlap, so each has a thread
    assert sum(name == "KV store" for name in names.values()) == 4
    first = [name for name, depth in tracks[2, 1] if depth == 0]
    assert first == ["step 1", "step 2", "step 3"]
    step = [(name, depth) for name, depth in tracks[2, 1]][: len(tracks[2, 1]) // 3]
    assert step == [
        ("step 1", 0), ("kv copies", 1), ("forward", 1), ("embed", 2), ("linear", 2), ("rank_barrier", 2),
        ("sampling", 1), ("broadcast tokens", 1),
    ]  # fmt: skip
    assert [name for name, _ in tracks[2, 2]] == ["embed", "linear"] * 3  # the second thread
    assert tracks[2, 1] == tracks[3, 1]
    arrows = [event for event in events if event["ph"] in "sf"]
    assert len({event["id"] for event in arrows}) == len(arrows) / 2 == 6
    shown = next(event for event in events if event["name"] == "step 2" and event["pid"] == 2)
    assert shown["args"]["linears us"] == pytest.approx(0.04)
    assert shown["ts"] == pytest.approx(3000.0, abs=0.01)  # from the begin of the recording
    assert shown["dur"] == 1000.0


def test_groups_and_ranks_of_other_hosts_are_on_one_clock() -> None:
    far = 5 * 10**12
    here = TimedRecording(recording("g0", recorded_rank(0)), ClockOffset(0, 0))
    there = recording("g1", recorded_rank(0), recorded_rank(1, ahead_ns=far))
    found = profile_file([here, TimedRecording(there, ClockOffset(MS, 50))])
    begins = {
        event["pid"]: event["ts"] for event in found.events if event["name"] == "step 1" and "dur" in event
    }
    ranks = {pid: at for pid, at in begins.items() if pid not in {1, 101}}
    # the leader of g1 is 1 ms ahead, so its recording begins 1 ms earlier than that of g0
    assert ranks == {2: 2000.0, 102: 1000.0, 103: 1000.0}
    assert [(one["of"], one["ahead_us"]) for one in found.clocks] == [
        ("g0 leader, to this host", 0.0), ("g0 rank 0, to its leader", 0.0),
        ("g1 leader, to this host", 1000.0), ("g1 rank 0, to its leader", 0.0),
        ("g1 rank 1, to its leader", 5e9), ("g1 rank 1, to rank 0", 0.0),
    ]  # fmt: skip


def test_collectives_bound_the_clocks_of_two_ranks_by_who_comes_last() -> None:
    one, other = rank_rows(recorded_rank(0)), rank_rows(recorded_rank(1, late_ns=99_000))
    found = clock_of_collectives(one, other)
    # rank 1 comes last: rank 0 leaves 1 us later, and rank 1 leaves 100 us after rank 0 came
    assert found == (ClockOffset(49_500, 50_500), 3)
    ahead = msgspec.structs.replace(recorded_rank(1), trace=recorded_rank(1, 0, 9 * MS).trace)
    assert clock_of_collectives(one, rank_rows(ahead)) == (ClockOffset(9 * MS, 100_000), 3)
    exchanges = other.spans[:, 3] == 2
    other.spans[exchanges, 1:3] += np.array([[300_000], [0], [-300_000]])
    assert clock_of_collectives(one, other) is None  # they contradict each other


def test_the_timeline_of_collectives_names_the_rank_that_others_wait_for() -> None:
    ranks = [rank_rows(recorded_rank(0)), rank_rows(recorded_rank(1, late_ns=90_000))]
    timeline = collective_timeline(ranks)
    assert timeline is not None
    ids, waited = timeline.waited_for()
    assert ids.tolist() == [1, 2, 3]
    # rank 0 enters 90 us before rank 1 in each of the three steps of 1 ms
    assert waited.tolist() == [[0, 90_000]] * 3
    assert timeline.slowest() == {1: 1, 2: 1, 3: 1}
    assert timeline.verdict() == (
        "no rank is slow; of the time of 3 steps, the others waited 0.0% for rank 0, 9.0% for rank 1"
    )
    ranks[0].spans[ranks[0].spans[:, 3] == 2, 1] -= 100_000  # it waits 190 us now
    slow = collective_timeline(ranks)
    assert slow is not None
    assert slow.verdict() == (
        "rank 1 is the slowest, in 3 of 3 steps; the others waited 19.0% of the steps' time for it"
    )


def test_a_timeline_takes_the_steps_that_all_ranks_recorded_in_full() -> None:
    ranks = [rank_rows(recorded_rank(rank)) for rank in range(3)]
    spans = ranks[2].spans
    exchanges = np.flatnonzero(spans[:, 3] == 2)
    ranks[2] = replace(ranks[2], spans=np.delete(spans, exchanges[-1], axis=0))  # its buffer was full
    timeline = collective_timeline(ranks)
    assert timeline is not None
    assert timeline.steps.tolist() == [1, 2]
    assert timeline.begins.shape == (3, 2)
    assert collective_timeline(ranks[:1]) is None
    assert collective_timeline([*ranks[:2], replace(ranks[2], spans=spans[:0])]) is None


def test_the_file_has_a_thread_for_the_collectives_of_each_rank_and_one_for_the_slowest() -> None:
    group = recording("g0", recorded_rank(0), recorded_rank(1, late_ns=40_000))
    found = profile_file([TimedRecording(group, ClockOffset(0, 0))])
    tracks = nested(found.events)
    assert tracks[100, 1] == [("rank 1", 0)] * 3
    assert tracks[100, 2] == [("waits for rank 1", 0), ("exchange", 0)] * 3
    assert tracks[100, 3] == [("exchange", 0)] * 3
    slowest = next(one for one in found.events if one.get("cat") == "slowest")
    assert slowest["args"] == {"step": 1, "waited for rank 0, us": 0.0, "waited for rank 1, us": 40.0}
    (slow,) = found.slow
    assert slow.startswith(
        "group g0: no rank is slow; of the time of 3 steps, the others waited 0.0% for rank 0"
    )
    assert found.as_dict()["otherData"]["collectives"] == found.slow


def test_what_was_not_recorded_is_reported_and_the_rest_is_written(tmp_path: Path) -> None:
    group = recording("g0", recorded_rank(0), RecordedRank(rank=1, problem="rank 1 ended during the profile"))
    good = heard("g0", group)
    busy = "group g1 records a profile already, which ends in 3.0 s"
    refused = HeardLeader("g1", "h", asked=True, refused=busy)
    lost = HeardLeader("g2", "h", recording=True, problem="its leader ended")
    file = tmp_path / "p.json"
    later = HeardLeader("g2", "h")  # the successor of the lost one, which was not asked
    problems = write_profile([lost, refused, good, later], file)
    assert problems == [
        f"Group g1 was not recorded: {busy}.",
        "Group g2 was not recorded: its leader ended.",
        "Group g0: rank 1 ended during the profile.",
    ]
    written = json.loads(file.read_text())
    assert written["otherData"]["notes"] == problems
    assert {event["pid"] for event in written["traceEvents"]} == {1, 2}
    damaged = heard("g0", group)
    damaged.parts[0] = b"no zlib"
    assert "is damaged" in write_profile([damaged], tmp_path / "q.json")[0]
    assert not (tmp_path / "q.json").exists()


def heard(group: str, recording_of: GroupRecording) -> HeardLeader:
    """A leader whose recording has arrived."""
    import zlib  # noqa: PLC0415

    parts = {0: zlib.compress(msgspec.msgpack.encode(recording_of))}
    return HeardLeader(group, "h", recording=True, parts=parts, count=1)


RECORD_S = 6.0  # long enough that it is not over when a second profile is asked for on a busy machine


async def test_leaders_record_what_they_do_and_refuse_a_second_profile_at_once(memory_bus: MemoryBus) -> None:
    async with (
        Kit(memory_bus, null_engine(delay_s=0.002)) as kit,
        Kit(memory_bus, group="g1", instance_id="j"),
    ):
        session, second = ProfileSession(memory_bus, None), ProfileSession(memory_bus, "g0")
        for one in (session, second):
            await one.listen()
            await one.find_leaders()
        assert [one.group for one in session.leaders.values()] == ["g0", "g1"]
        assert [one.group for one in second.leaders.values()] == ["g0"]
        first = asyncio.create_task(session.record(RECORD_S, 0))
        await until(lambda: all(one.recording for one in session.leaders.values()))
        await kit.run(chat("r", sampling={"max_tokens": 8}))
        await second.record(0.1, 0)
        (refused,) = second.leaders.values()
        assert "group g0 records a profile already, which ends in " in refused.refused
        await first
        unpacked = session.leaders["i"].unpacked()
        assert unpacked.group == "g0"
        assert RECORD_S * 1e9 <= unpacked.ended_ns - unpacked.began_ns < 30e9
        rows = np.frombuffer(unpacked.steps, np.int64).reshape(-1, 10)
        assert len(rows) >= 8
        assert (rows[:, 2] >= unpacked.began_ns).all()
        assert len(np.frombuffer(unpacked.rank_steps, np.int64)) == 12 * len(rows)
        subjects = {one.subject for one in unpacked.messages}
        assert "ryz.v1.work.g0" in subjects  # in
        assert any(one.outgoing and one.subject == kit.inbox for one in unpacked.messages)
        await session.record(0.1, 0)  # the next one is not refused
        assert session.leaders["i"].recording


async def test_a_leader_that_ends_meanwhile_is_reported(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.profile.query.CHECK_S", 0.05)
    async with Kit(memory_bus, group="g1", instance_id="j"), Kit(memory_bus) as kit:
        session = ProfileSession(memory_bus, None)
        await session.listen()
        await session.find_leaders()
        recording = asyncio.create_task(session.record(0.6, 0))
        await asyncio.sleep(0.5)
        await kit.leader.stop()
        await recording
    assert "its leader ended" in session.leaders["i"].problem
    assert not session.leaders["j"].problem
    assert session.leaders["j"].unpacked().group == "g1"


async def test_an_engine_that_begins_again_meanwhile_is_reported(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = null_engine(delay_s=0.002)
    async with Kit(memory_bus, engine) as kit:
        kit.expected_errors = {"the engine failed"}
        session = ProfileSession(memory_bus, "g0")
        await session.listen()
        await session.find_leaders()
        recording = asyncio.create_task(session.record(0.5, 0))
        await asyncio.sleep(0.05)
        monkeypatch.setattr(engine, "compute", _failing)
        await kit.failure(chat("r"))
        await recording
        unpacked = session.leaders["i"].unpacked()
    assert "started again meanwhile" in unpacked.problem
    assert unpacked.problem in profile_file([TimedRecording(unpacked, ClockOffset(0, 0))]).notes[0]


def _failing(*_: object) -> None:
    raise EngineFailed("rank 1 died")
