"""The tables of `ryz status`: services, groups, stores, and models that hosts offer."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from cli.groups.silent_groups import silent_groups
from cli.stack.state import ServiceState, StackState
from cli.status.query import StatusReport
from cli.status.view import render
from shared.messages import ServiceStatus


def answer(service: str, pid: int, **detail: Any) -> ServiceStatus:
    return ServiceStatus(
        service=service,
        instance_id=f"i{pid}",
        state="ready",
        version="1",
        uptime_s=61,
        pid=pid,
        detail=detail,
    )


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        ({}, ""),
        ({"model": "small"}, "draft model small is starting"),
        ({"model": "small", "model_failure": "it died"}, "draft model small is away: it died"),
        ({"model": "small", "model_up": True}, "draft model small: no guesses so far"),
        (
            {"model": "small", "model_up": True, "model_draft_tokens": 8, "model_accepted_tokens": 2},
            "draft model small: 2 of 8 right (25%)",
        ),
    ],
)
def test_status_tells_of_the_draft_model(speculation: dict[str, Any], expected: str) -> None:
    group = {"group": "g0", "state": "ready", "model": "demo", "speculation": speculation}
    screen = Console(file=io.StringIO(), width=160)
    screen.print(render(StatusReport("nats://x", None, [answer("worker", 1, **group)])))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert expected in text
    assert ("drafts" in text) == bool(expected)


@pytest.mark.parametrize(
    ("adapters", "expected"),
    [
        ({}, ""),
        ({"loaded": 0, "bytes": 0, "most_bytes": 2**28, "waiting": 0}, ""),
        (
            {"loaded": 8, "bytes": 5 * 2**20, "most_bytes": 2**28, "waiting": 3},
            "8 loaded, 5 of 256 MiB; 3 requests wait",
        ),
    ],
)
def test_status_tells_of_adapters(adapters: dict[str, Any], expected: str) -> None:
    group = {"group": "g0", "state": "ready", "model": "demo", "adapters": adapters}
    screen = Console(file=io.StringIO(), width=160)
    screen.print(render(StatusReport("nats://x", None, [answer("worker", 1, **group)])))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert expected in text
    assert ("adapters" in text) == bool(expected)


def test_status_tables() -> None:
    rank = {"rank": 0, "pid": 9, "state": "ready", "steps": 3, "memory_bytes": 2**20, "load_s": 0.5}
    rank |= {"kernels": "native int8", "host": "10.0.0.2"}
    group: dict[str, Any] = {"group": "g0", "state": "failed", "failure": "rank 1 is gone", "model": "demo"}
    group |= {"ranks": [rank]}
    group |= {"speculation": {"on": True, "draft_tokens": 2000, "accepted_tokens": 1500}}
    seen = {"groups": [{"group": "g0", "sent_total": 5}]}
    services = [answer("worker", 1, **group), answer("router", 2, **seen), answer("kvstate", 3, sessions=4)]
    supervisor = StackState(
        1, 0, "http://up", "nats://x", "", "demo", True,
        [ServiceState("worker-g0", 1, True, 6), ServiceState("kvstate", 3), ServiceState("gateway-1", 77)],
    )  # fmt: skip
    report = StatusReport("nats://x", supervisor, services)
    screen = Console(file=io.StringIO(), width=120)
    screen.print(render(report))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    for expected in ("http://up", "4 sessions", "worker g0", "1 m 1 s", "rank 1 is gone", "1 MiB", "0.50 s"):
        assert expected in text
    for expected in ("drafts", "1,500 of 2,000 right (75%)"):
        assert expected in text
    assert "native int8" in text
    assert [line.split()[:5] for line in text.splitlines() if "no answer" in line] == [
        ["gateway-1", "no", "answer", "77", "-"]
    ]
    assert "9 on 10.0.0.2" in text
    plain = report.as_dict()
    assert plain["groups"][0]["leader_pid"] == 1
    assert plain["sessions"] == 4
    assert json.loads(json.dumps(plain)) == plain


@pytest.mark.parametrize(("nodes", "shown"), [((1, 0), ["1", "0"]), ((1, -1), ["1", "all"]), ((-1, -1), [])])
def test_ranks_show_their_numa_node_where_a_machine_has_several(
    nodes: tuple[int, ...], shown: list[str]
) -> None:
    ranks = [
        {
            "rank": n,
            "pid": 9,
            "state": "ready",
            "steps": 3,
            "load_s": 0.5,
            "numa_node": node,
            "kernels": "avx2",
        }
        for n, node in enumerate(nodes)
    ]
    screen = Console(file=io.StringIO(), width=160)
    services = [answer("worker", 1, group="g0", state="ready", model="demo", ranks=ranks)]
    screen.print(render(StatusReport("nats://x", None, services)))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert ("NUMA node" in text) == bool(shown)
    rows = [line.split() for line in text.splitlines() if line.endswith(("avx2", "avx2  ")) or "avx2" in line]
    assert [row[-2] for row in rows if shown] == shown


def test_a_leader_that_does_not_answer_is_shown_as_routers_know_it() -> None:
    def seen(name: str, age_s: float, state: str, lost: str = "") -> dict[str, Any]:
        return {
            "group": name, "instance_id": f"i-{name}", "state": state, "model": "demo", "lost": lost,
            "heartbeat_age_s": age_s,
        }  # fmt: skip

    group = {"group": "g0", "state": "ready", "model": "demo"}
    cut_off = [seen("g0", 50, "lost", "silent"), seen("g1", 50, "lost", "silent"), seen("g2", 50, "ready")]
    near = [seen("g0", 0, "ready"), seen("g1", 0.01, "ready"), seen("g2", 70, "lost", "disconnected")]
    near += [seen("g3", 8, "stopped")]
    services = [
        answer("worker", 1, **group),
        answer("router", 2, groups=cut_off),
        answer("router", 3, groups=near),
    ]
    report = StatusReport("nats://x", None, services)
    assert [(one["group"], one["state"]) for one in report.groups()] == [
        ("g0", "ready"), ("g1", "no answer"), ("g2", "no answer"), ("g3", "stopped"),
    ]  # fmt: skip
    assert json.loads(json.dumps(report.as_dict()))["groups"][3]["heard_s_ago"] == 8
    screen = Console(file=io.StringIO(), width=120)
    screen.print(render(report))
    assert "last heard 50 s ago" in screen.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("store", "shown"), [("up", "ready"), ("away", "no store"), ("disk full", "disk full")]
)
def test_a_store_in_trouble_shows_in_the_service_that_uses_it(store: str, shown: str) -> None:
    screen = Console(file=io.StringIO(), width=120)
    screen.print(render(StatusReport("nats://x", None, [answer("kvstate", 3, store=store)])))
    (line,) = [one for one in screen.file.getvalue().splitlines() if "kvstate" in one]  # type: ignore[attr-defined]
    assert shown in line


def test_status_says_when_the_store_was_counted() -> None:
    screen = Console(file=io.StringIO(), width=120)
    counted = answer("kvstate", 3, store_read={"sessions": 1200, "pins": 0})
    screen.print(render(StatusReport("nats://x", None, [counted])))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "in Redis at the last start of kvstate or Redis: 1,200 sessions\n" in shown


def test_status_tells_of_models_that_hosts_offer_and_of_their_controller() -> None:
    screen = Console(file=io.StringIO(), width=160)
    models = {"ready": ["demo"], "asleep": ["large", "small"]}
    routers = [
        answer("router", 2, models=models, models_lease={"held": False}),
        answer("router", 3, models=models, models_lease={"held": True}),
    ]
    screen.print(render(StatusReport("nats://x", None, routers)))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    holder = routers[1].instance_id
    assert f"models asleep: large, small; ready: demo (controller: {holder})" in shown
    none = Console(file=io.StringIO(), width=160)
    none.print(render(StatusReport("nats://x", None, [answer("router", 2, models={})])))
    assert "controller" not in none.file.getvalue()  # type: ignore[attr-defined]


def test_status_without_answers() -> None:
    screen = Console(file=io.StringIO(), width=120)
    screen.print(render(StatusReport("nats://x", None, [], "no service answered")))
    assert "no service answered" in screen.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("models", "state", "story"),
    [
        ({}, "stopped", "ended by itself 8 s ago"),
        ({"asleep": ["demo"]}, "asleep", "was put to sleep 8 s ago; the next request for demo wakes it"),
        ({"ready": ["demo"], "asleep": ["other"]}, "stopped", "ended 8 s ago"),
        ({"absent": ["demo"]}, "stopped", "ended 8 s ago"),
    ],
)
def test_a_group_that_was_put_to_sleep_is_no_group_that_ended_by_itself(
    models: dict[str, list[str]], state: str, story: str
) -> None:
    seen = {"group": "g3", "instance_id": "i", "state": "stopped", "model": "demo", "heartbeat_age_s": 8}
    services = [
        answer("worker", 1, group="g0", state="ready"),
        answer("router", 2, groups=[seen], models=models),
    ]
    (group,) = silent_groups(services)
    assert (group.state, group.story) == (state, story)
    screen = Console(file=io.StringIO(), width=160)
    screen.print(render(StatusReport("nats://x", None, services)))
    assert story in screen.file.getvalue()  # type: ignore[attr-defined]
    lost, *_ = silent_groups([answer("router", 2, groups=[seen | {"state": "lost"}], models=models)])
    assert lost.state == "lost"


def test_status_tells_what_a_guest_is_and_lacks() -> None:
    guest = {"name": "vLLM 0.32", "can": ["continuation", "seed"], "lacks": ["grammar"]}
    group = {"group": "r0", "state": "ready", "model": "demo", "guest": guest}
    own = {"group": "g0", "state": "ready", "model": "demo", "guest": {}}
    screen = Console(file=io.StringIO(), width=160)
    screen.print(render(StatusReport("nats://x", None, [answer("worker", 1, **group)])))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "r0: guest vLLM 0.32; can continuation, seed; cannot grammar\n" in text
    screen = Console(file=io.StringIO(), width=160)
    screen.print(render(StatusReport("nats://x", None, [answer("worker", 1, **own)])))
    assert "cannot" not in screen.file.getvalue()  # type: ignore[attr-defined]
