"""`ryz top`: rates between two answers, the slow rank, losses, narrow terminals, keys, no broker."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli.__main__ import app
from cli.status.query import StatusReport
from cli.top.command import QuitKey
from cli.top.fleet_rates import FleetComparison, FleetRates, quantile
from cli.top.view import render
from shared.host.own_python import module_environment
from shared.messages import ServiceStatus

BOUNDS = [0.01, 0.1, 1.0]


def service(name: str, instance: str, **detail: Any) -> ServiceStatus:
    return ServiceStatus(
        service=name, instance_id=instance, state="ready", version="1", uptime_s=1.0, pid=1, detail=detail
    )


def leader(group: str, tokens: int, ranks: list[dict[str, Any]], **detail: Any) -> ServiceStatus:
    described = {
        "group": group, "model": "demo", "state": "ready", "running": 3, "waiting": 1, "queued_tokens": 500,
        "free_blocks": 25, "total_blocks": 100, "computed_tokens": tokens,
        "first_token_s": {"bounds": BOUNDS, "counts": [0, 0, 0, 0]},
        "inter_token_s": {"bounds": BOUNDS, "counts": [0, 0, 0, 0]},
        "ranks": ranks,
    }  # fmt: skip
    return service("worker", f"i-{group}", **{**described, **detail})


def rank(number: int, steps: int, step_s: float, **seconds: float) -> dict[str, Any]:
    return {
        "rank": number, "state": "ready", "memory_bytes": 2**27, "steps_done": steps, "step_s": step_s,
        "seconds": seconds,
    }  # fmt: skip


def report(*services: ServiceStatus, problem: str = "") -> StatusReport:
    return StatusReport("nats://x", None, list(services), problem)


def looks(*reports: StatusReport) -> FleetRates:
    """The last of looks that are 2 s apart."""
    watch = FleetComparison()
    return [watch.take(one, 2.0 * index, 1000.0 + 2 * index) for index, one in enumerate(reports)][-1]


def shown(fleet: FleetRates, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(fleet, width, "nats://x", 1.0))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


BEFORE = leader(
    "g0", 1000, [rank(0, 10, 1.0, linears=0.5, collectives=0.2, idle=1.0), rank(1, 10, 1.0, linears=0.5)]
)
AFTER = leader(
    "g0", 3000,
    [
        rank(0, 110, 2.0, linears=1.3, collectives=0.3, sampling=0.1, idle=2.0),
        rank(1, 110, 2.0, linears=0.8, collectives=0.7, idle=1.0),
    ],
    first_token_s={"bounds": BOUNDS, "counts": [0, 10, 0, 0]},
    speculation={"draft_tokens": 80, "accepted_tokens": 60},
)  # fmt: skip
ROUTER = service("router", "r", groups=[{"group": "g0", "requests_per_s": 7.5}])


def test_differences_of_counts_are_rates_and_shares() -> None:
    first = looks(report(BEFORE, ROUTER))
    assert (first.groups[0].tokens_per_s, first.ranks[0].steps_per_s, first.ranks[0].shares) == (
        None,
        None,
        {},
    )
    fleet = looks(report(BEFORE, ROUTER), report(AFTER, ROUTER, service("gateway", "w", running=4)))
    (group,), (zero, one) = fleet.groups, fleet.ranks
    assert (group.tokens_per_s, group.requests_per_s, group.kv_usage, fleet.flowing) == (1000, 5, 0.75, 4)
    assert group.first_token_ms == pytest.approx((55.0, 99.1))
    assert group.inter_token_ms is None
    assert group.drafts_right == 0.75
    assert first.groups[0].drafts_right is None
    assert (zero.steps_per_s, zero.step_ms) == (50, 10)
    assert zero.shares == pytest.approx({"linears": 0.4, "collectives": 0.05, "sampling": 0.05, "idle": 0.5})
    assert sum(one.shares.values()) == pytest.approx(1.0)
    assert (zero.is_slow, one.is_slow) == (True, False)  # rank 1 waits half of its step for it
    text = shown(fleet)
    for part in ("g0", "1,000", "55 / 99", "50", "10.00", "the others wait for it", "128 MiB", "75%"):
        assert part in text


def test_sampling_on_rank_0_makes_no_rank_slow() -> None:
    ranks = [rank(0, 0, 0.0), rank(1, 0, 0.0)]
    later = [rank(0, 10, 1.0, linears=0.5, collectives=0.1, sampling=0.4)]
    later.append(rank(1, 10, 1.0, linears=0.5, collectives=0.5))
    fleet = looks(report(leader("g0", 0, ranks)), report(leader("g0", 0, later)))
    assert [one.is_slow for one in fleet.ranks] == [False, False]


def test_a_step_that_does_not_end_is_reported_and_an_idle_group_has_no_requests_a_second() -> None:
    hung = rank(0, 110, 2.0, linears=1.3) | {"running_step_s": 12.3}
    quiet = looks(
        report(AFTER),
        report(leader("g0", 3000, [hung, hung], first_token_s=AFTER.detail["first_token_s"])),
    )
    assert quiet.groups[0].requests_per_s == 0
    assert "its step has run for 12.3 s" in shown(quiet)


def test_a_leader_that_began_again_has_no_rates_and_losses_are_news() -> None:
    seen = {"group": "g0", "instance_id": "i-g0", "state": "lost", "model": "demo", "heartbeat_age_s": 3}
    lost = service("router", "r", groups=[{**seen, "lost": "disconnected"}])
    again = leader("g0", 10, [rank(0, 1, 0.1, linears=0.1)])
    again = service("worker", "i-new", **again.detail)
    gone = looks(report(BEFORE, ROUTER), report(lost))
    assert (gone.groups[0].state, gone.ranks) == ("lost", [])
    assert "disconnected, last heard 3 s ago" in shown(gone)
    back = looks(report(BEFORE, ROUTER), report(lost), report(again, ROUTER))
    assert back.groups[0].tokens_per_s is None
    assert [reported for _, reported in back.news] == [
        "g0 is lost, was ready: disconnected, last heard 3 s ago", "g0 is ready, was lost",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_a_narrow_terminal_gets_fewer_columns_and_no_broken_lines(width: int) -> None:
    fleet = looks(report(BEFORE, ROUTER), report(AFTER, ROUTER))
    text = shown(fleet, width)
    tables = [line for line in text.splitlines() if line.startswith(("g0", "group"))]
    assert len(tables) == 5  # two heads, one group, two ranks
    assert all(len(line.rstrip()) <= width for line in tables)


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([10, 0, 0, 0], 0.5, 0.005),
        ([0, 10, 0, 0], 1.0, 0.1),
        ([5, 5, 0, 0], 0.5, 0.01),
        ([0, 0, 0, 3], 0.5, 1.0),
    ],
)
def test_quantiles_are_those_of_prometheus(counts: list[int], share: float, value: float) -> None:
    assert quantile(BOUNDS, counts, share) == pytest.approx(value)


def command(tmp_path: Path, *options: str) -> list[str]:
    nowhere = ["--nats-url", "nats://127.0.0.1:1", "--state-dir", str(tmp_path)]
    return [sys.executable, "-P", "-m", "cli", "top", *nowhere, *options]


def test_a_broker_that_is_away_at_the_start_ends_the_command(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = module_environment({**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"})
    done = subprocess.run(
        command(tmp_path), stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment, check=False,
        timeout=30,
    )  # fmt: skip
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 1
    assert b"No broker answers at nats://127.0.0.1:1" in done.stderr


def test_q_ends_the_view_and_other_keys_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours) as keys:
        monkeypatch.setattr("sys.stdin", keys)
        os.write(theirs, b"x")
        assert not QuitKey(True).pressed_within(0.01)
        os.write(theirs, b"xq")
        assert QuitKey(True).pressed_within(30)
    os.close(theirs)


@pytest.mark.parametrize("options", [(), ("--once",)])
def test_without_a_terminal_one_view_is_printed(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.status.query.ask_status", lambda *_: report(BEFORE, ROUTER))
    nowhere = ["--nats-url", "nats://127.0.0.1:1", "--state-dir", str(tmp_path), "--interval", "0.5"]
    done = CliRunner().invoke(app, ["top", *nowhere, *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert len([line for line in done.stdout.splitlines() if line.startswith("group")]) == 2  # two tables


def test_once_without_a_broker_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--once", "--json"), env=module_environment(os.environ), capture_output=True,
        text=True, check=False, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "No broker answers at nats://127.0.0.1:1" in done.stderr


def test_the_fleet_is_plain_data_for_json() -> None:
    from dataclasses import asdict  # noqa: PLC0415

    fleet = looks(report(BEFORE, ROUTER), report(AFTER, ROUTER))
    assert json.loads(json.dumps(asdict(fleet)))["ranks"][1]["rank"] == 1
