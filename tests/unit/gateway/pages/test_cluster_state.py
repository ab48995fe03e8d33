"""What the live view tells of heartbeats, losses and turns."""

from typing import Any

from services.gateway.pages.cluster_state import MAX_INCIDENTS, MAX_SESSIONS, ClusterState
from services.gateway.pages.rank_watch import RankWatch
from shared import subjects
from shared.bus import Message
from shared.codec import encode
from shared.messages import GroupDown, Heartbeat, Load, ModelCard, ServiceStatus, SessionTurn
from tests.kits.memory_bus import MemoryBroker, MemoryBus
from tests.kits.waiting import until


def beat(seq: int, group: str = "g0", instance: str = "a", **fields: Any) -> Heartbeat:
    model = ModelCard(name="demo", context_length=64)
    fields = {"state": "ready", "load": Load(running=3, max_running=8), **fields}
    return Heartbeat(group=group, instance_id=instance, seq=seq, interval_ms=25, model=model, **fields)


def kinds(state: ClusterState) -> list[str]:
    return [incident["kind"] for incident in state.incidents]


def test_a_lost_group_is_reported_once_with_its_requests_and_its_return() -> None:
    state = ClusterState()
    state.take_beat(beat(1), 10.0, 1)
    down = GroupDown(group="g0", instance_id="a", reason="disconnected")
    for _ in range(2):  # of two routers
        state.take_down(down, 10.1, 2)
    shown = state.snapshot(10.5)["groups"][0]
    assert (shown["state"], shown["running"], shown["away_s"]) == ("lost", 0, 0.4)
    state.take_beat(beat(1, instance="b", state="starting"), 11.0, 3)
    state.take_beat(beat(2, instance="b"), 12.1, 4)
    assert kinds(state) == ["lost", "back"]
    assert state.incidents[0]["requests"] == 3
    assert state.incidents[1]["seconds"] == 2.0
    assert state.snapshot(12.2)["groups"][0]["state"] == "ready"


def test_a_loss_of_an_earlier_instance_changes_nothing() -> None:
    state = ClusterState()
    state.take_beat(beat(1, instance="b"), 10.0, 1)
    state.take_down(GroupDown(group="g0", instance_id="a", reason="silent"), 10.1, 2)
    assert not state.incidents


def test_a_lost_rank_and_a_silence_with_requests_are_reported() -> None:
    state = ClusterState()
    state.take_beat(beat(1), 10.0, 1)
    state.take_beat(beat(2, state="recovering"), 10.025, 1)
    state.take_beat(beat(3), 11.025, 1)
    assert state.snapshot(13.1)["groups"][0]["state"] == "silent"
    state.take_beat(beat(4), 13.2, 1)
    assert kinds(state) == ["recovering", "back", "silent"]
    assert state.incidents[-1]["text"] == "g0 was silent for 2.2 s and had 3 requests"


def test_silences_that_nobody_felt_are_not_reported() -> None:
    state, idle = ClusterState(), Load(max_running=8)
    state.take_beat(beat(1, load=idle), 10.0, 1)
    state.take_beat(beat(2, load=idle), 15.0, 1)  # it had no requests
    state.take_beat(beat(3), 16.9, 1)
    state.take_beat(beat(4), 18.8, 1)  # short
    state.unread_s += 3.0  # the gateway itself was held up
    assert state.snapshot(23.0)["groups"][0]["state"] == "ready"
    state.take_beat(beat(5), 23.1, 1)
    assert not state.incidents


def test_a_tenant_sees_its_own_sessions_only() -> None:
    state = ClusterState()
    for tenant in ("ada", "bob"):
        turn = SessionTurn(tenant=tenant, session_id=f"of-{tenant}", group="g0", num_tokens=9)
        state.take_turns([turn], 5)
    expected = {"session_id": "of-ada", "group": "g0", "tokens": 9, "updated_ms": 5}
    assert state.sessions_of("ada") == [expected]
    assert "sessions" not in state.snapshot(0.0)


def test_all_that_is_kept_has_a_bound() -> None:
    state = ClusterState()
    turns = [SessionTurn(tenant="t", session_id=f"s{index}", group="g") for index in range(MAX_SESSIONS + 9)]
    state.take_turns(turns, 1)
    for index in range(MAX_INCIDENTS + 9):
        state.note_moved(index + 1, 1)
    for index in range(300):
        state.take_beat(beat(1, group=f"g{index}"), 1.0, 1)
    assert (len(state.sessions), len(state.incidents), len(state.groups)) == (
        MAX_SESSIONS,
        MAX_INCIDENTS,
        256,
    )
    assert not state.snapshot(1000.0)["groups"]  # none was heard for long


async def test_ranks_are_asked_for_and_shown_without_host_and_pid() -> None:
    broker, state = MemoryBroker(), ClusterState()
    gateway, leader = MemoryBus(broker), MemoryBus(broker)
    row = {
        "rank": 0,
        "pid": 17,
        "host": "h",
        "state": "ready",
        "steps": 5,
        "memory_bytes": 9,
        "kernels": "avx2",
    }

    async def answer(message: Message) -> None:
        for instance, rows in (("a", [row]), ("b", [])):  # the second one is not the instance that beats
            detail = {"group": "g0", "ranks": rows}
            status = ServiceStatus(
                service="worker",
                instance_id=instance,
                state="ready",
                version="1",
                uptime_s=1.0,
                pid=17,
                detail=detail,
            )
            await leader.publish(message.reply, encode(status))
        await leader.publish(message.reply, b"garbage")

    await leader.subscribe(subjects.STATUS, answer)
    state.take_beat(beat(1), 10.0, 1)
    watch = RankWatch(gateway, state)
    await watch.subscribe()
    for now_s in (10.0, 10.1):
        await watch.ask_when_due(now_s)
    await until(lambda: bool(state.snapshot(10.2)["groups"][0]["rank_list"]))
    shown = state.snapshot(10.2)["groups"][0]["rank_list"]
    assert shown == [{"rank": 0, "state": "ready", "steps": 5, "memory_bytes": 9, "kernels": "avx2"}]
    state.take_beat(beat(1, instance="b"), 11.0, 1)
    assert state.snapshot(11.0)["groups"][0]["rank_list"] == []
    await gateway.close()
    await leader.close()


def test_a_return_without_a_view_is_reported_when_a_view_opens_and_counts_go_on() -> None:
    state = ClusterState()
    state.take_down(GroupDown(group="g0", instance_id="a", reason="silent"), 10.0, 1)
    state.take_beat(beat(1, instance="b", ended_total=7), 600.0, 2)
    assert kinds(state) == ["lost", "back"]
    state.take_down(GroupDown(group="g0", instance_id="b", reason="silent"), 601.0, 3)
    state.take_beat(beat(1, instance="c", state="starting"), 602.0, 4)
    shown = state.snapshot(602.0)["groups"][0]
    assert (shown["state"], shown["away_s"], shown["ended"]) == ("starting", 1.0, 7)
    state.take_beat(beat(2, instance="c", ended_total=2), 603.0, 5)
    assert kinds(state) == ["lost", "back", "lost", "back"]
    assert state.snapshot(603.0)["groups"][0]["ended"] == 9


def test_a_heartbeat_that_comes_after_the_loss_does_not_make_it_a_silence() -> None:
    state = ClusterState()
    state.take_beat(beat(1), 10.0, 1)
    state.take_down(GroupDown(group="g0", instance_id="a", reason="disconnected"), 10.1, 2)
    state.take_beat(beat(2), 10.2, 3)  # it was under way
    assert state.snapshot(12.3)["groups"][0]["state"] == "lost"
