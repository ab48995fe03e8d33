"""`ryz logs`: lines of all services by time, of every format that stands in a stack's logs."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.logs.command import parse_since
from cli.logs.files import LogFiles
from cli.logs.lines import parse_line
from cli.stack.state import StateDir

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


def ours(second: float, event: str, **fields: object) -> str:
    at = datetime.fromtimestamp(NOON + second, UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"timestamp": at, "level": "info", "event": event, "service": "x"} | fields) + "\n"


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    state_dir = StateDir(tmp_path / "state")
    state_dir.make()
    local = datetime.fromtimestamp(NOON + 2.5)
    state_dir.log("gateway-0").write_text(ours(1, "one", request_id="ada-1") + ours(4, "four"))
    state_dir.log("worker-g0").write_text(
        ours(2, "two", request_id="ada-12", level="warning") + ours(3, "three")
    )
    state_dir.log("nats").write_text(
        local.strftime("[7] %Y/%m/%d %H:%M:%S.%f [WRN] slow consumer\n") + "panic: no time here\n"
    )
    state_dir.log("redis").write_text(local.strftime("9:M %d %b %Y %H:%M:%S.900 * Ready to accept\n"))
    state_dir.log("worker-g0").with_suffix(".log.1").write_text(ours(-50, "before"))
    return state_dir.path


def run(state_dir: Path, *options: str) -> list[str]:
    result = CliRunner().invoke(
        app, ["logs", "--state-dir", str(state_dir), *options], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def events(lines: list[str]) -> list[str]:
    known = (
        "one",
        "two",
        "three",
        "four",
        "slow consumer",
        "panic: no time here",
        "Ready to accept",
        "before",
    )
    return [next(event for event in known if event in line) for line in lines]


def test_lines_of_all_services_stand_by_their_time(state_dir: Path) -> None:
    lines = run(state_dir)
    merged = ["one", "two", "slow consumer", "panic: no time here", "Ready to accept", "three", "four"]
    assert events(lines) == merged
    assert "request_id=ada-1" in lines[0]
    assert "gateway-0" in lines[0]
    assert events(run(state_dir, "--before")) == ["before", *merged]


def test_lines_are_chosen(state_dir: Path) -> None:
    assert events(run(state_dir, "--request", "ada-1")) == ["one", "two"]  # ids begin with the caller's
    assert events(run(state_dir, "--request", "ada-12")) == ["two"]
    assert events(run(state_dir, "--level", "warning")) == ["two", "slow consumer"]
    assert events(run(state_dir, "--service", "nats", "--service", "redis")) == [
        "slow consumer",
        "panic: no time here",
        "Ready to accept",
    ]
    since = datetime.fromtimestamp(NOON + 3).isoformat()
    assert events(run(state_dir, "--since", since)) == ["three", "four"]


def test_json_lines_are_those_that_were_written(state_dir: Path) -> None:
    written = (state_dir / "logs" / "gateway-0.log").read_text().splitlines()
    assert run(state_dir, "--json", "--service", "gateway-0") == written


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (["--since", "yesterday"], "`--since` is a span such as 90s", 2),
        (["--since", "1s"], "There is no such line.", 1),
        (["--request", "eve"], "no line of 'eve'. A request is logged when it moves", 1),
        (["--service", "none"], "There is no service 'none'; there are gateway-0, nats", 2),
    ],
)
def test_wrong_options_are_named(state_dir: Path, options: list[str], message: str, code: int) -> None:
    result = CliRunner().invoke(app, ["logs", "--state-dir", str(state_dir), *options])
    assert isinstance(result.exception, CommandError)
    assert message in str(result.exception)
    assert result.exception.exit_code == code


def test_without_logs_the_remedy_is_reported(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["logs", "--state-dir", str(tmp_path / "none")])
    assert "no stack was started there" in str(result.exception)


def test_logs_of_the_stack_before_are_named_where_the_last_start_was_refused(state_dir: Path) -> None:
    for log in (state_dir / "logs").glob("*.log"):
        os.replace(log, log.with_suffix(".log.1"))  # as a start does first
    result = CliRunner().invoke(app, ["logs", "--state-dir", str(state_dir)])
    assert "`ryz logs --before --state-dir" in str(result.exception)
    assert "no stack was started there" not in str(result.exception)
    assert "three" in events(run(state_dir, "--before"))


def test_new_lines_files_and_starts_are_followed(state_dir: Path) -> None:
    logs = state_dir / "logs"
    gateway, half = logs / "gateway-0.log", ours(7, "seven")

    def write() -> None:
        if not (logs / "router-0.log").exists():
            with gateway.open("a") as file:
                file.write(ours(6, "six") + half[:20])
            (logs / "router-0.log").write_text(ours(5, "five"))
            return
        with gateway.open("a") as file:
            file.write(half[20:])
        os.replace(logs / "worker-g0.log", logs / "worker-g0.log.1")
        (logs / "worker-g0.log").write_text(ours(8, "eight"))

    with LogFiles(logs, older=False) as files:
        assert len(list(files.past())) == 7
        following = files.follow(write)
        assert [next(following).event for _ in range(4)] == ["five", "six", "seven", "eight"]


def test_a_time_never_goes_back_within_a_file() -> None:
    line = parse_line('{"timestamp": "2020-01-01T00:00:00Z", "event": "late"}', "x", NOON)
    assert (line.time_s, line.event, line.level) == (NOON, "late", "info")
    assert parse_line('{"broken', "x", NOON).event == '{"broken'
    assert parse_line('{"timestamp": 7, "level": "loud"}', "x", NOON).level == "info"


def test_spans() -> None:
    assert [parse_since(text, 100_000) for text in ("90s", "1.5m", "2h", "1d")] == [
        99_910,
        99_910,
        92_800,
        13_600,
    ]


def test_lines_of_a_pipe_are_merged_by_time_under_the_names_of_their_containers() -> None:
    piped = (
        f"worker-g0_1  | {ours(2, 'two', request_id='ada-1', level='warning')}"
        f"\x1b[36mgateway_1    |\x1b[0m {ours(1, 'one', request_id='ada-1')}"
        f"nats_1       | something | else\n"
        f"{ours(3, 'three')}"
        "gateway_1    | \n"
    )
    shown = CliRunner().invoke(app, ["logs", "--from", "-"], input=piped)
    assert shown.exit_code == 0, shown.output
    reported = [line.split()[2:4] for line in shown.output.splitlines()]
    assert reported == [["nats_1", "something"], ["gateway_1", "one"], ["worker-g0_1", "two"], ["x", "three"]]
    one = CliRunner().invoke(
        app, ["logs", "--from", "-", "--request", "ada", "--level", "warning"], input=piped
    )
    assert [line.split()[3] for line in one.output.splitlines()] == ["two"]
    none = CliRunner().invoke(app, ["logs", "--from", "/no/such/file"])
    assert isinstance(none.exception, CommandError)
    assert (none.exception.exit_code, "No such file" in str(none.exception)) == (2, True)


def test_lines_of_the_supervisor_have_their_time_and_deaths_are_warnings() -> None:
    died = parse_line("2026-03-01T12:00:01.500+00:00 worker-g0 died (signal 9); starting", "supervisor", 0.0)
    assert (died.time_s, died.level) == (NOON + 1.5, "warning")
    back = parse_line("2026-03-01T12:00:02.000+00:00 worker-g0 is ready again", "supervisor", 0.0)
    assert (back.time_s, back.level, back.event) == (NOON + 2, "info", "worker-g0 is ready again")


def test_spans_of_the_console_exporter_are_lines_of_their_trace() -> None:
    span = {
        "name": "route", "context": {"trace_id": "0x0af7", "span_id": "0x1"}, "parent_id": None,
        "start_time": "2026-03-01T12:00:01.000000Z", "end_time": "2026-03-01T12:00:01.500000Z",
        "attributes": {"ryz.group": "g1"},
    }  # fmt: skip
    line = parse_line(json.dumps(span), "router", 0.0)
    assert (line.event, line.level, line.time_s) == ("span route", "debug", NOON + 1.5)
    assert line.fields == {"trace_id": "0af7", "duration_ms": 500.0, "ryz.group": "g1"}
    assert line.has_id("0af7")


def test_spans_are_shown_where_they_are_asked_for() -> None:
    span = json.dumps({"name": "route", "context": {"trace_id": "0x0af7"}, "start_time": "", "end_time": ""})
    piped = span + "\n" + json.dumps({"event": "one", "level": "info"}) + "\n"
    for options, shown in (([], 1), (["--spans"], 2), (["--request", "0af7"], 1)):
        result = CliRunner().invoke(app, ["logs", "--from", "-", *options], input=piped)
        assert len(result.output.splitlines()) == shown
        assert ("span route" in result.output) == bool(options)


def test_lines_of_a_rank_and_of_a_group_are_chosen() -> None:
    lines = (
        ours(1, "loaded", service="worker", role="rank", group="g1", rank=0),
        ours(2, "the engine failed", service="worker", group="g1", rank=1),
        ours(3, "slow", service="worker", role="rank", group="g2", rank=1),
        ours(4, "request goes on", service="gateway", group="g2", lost_group="g1"),
        ours(5, "ready", service="worker", group="g10"),
        "2026-03-01T12:00:06.000+00:00 worker-g1 died (signal 9)\n",
        "2026-03-01T12:00:07.000+00:00 worker-g10 died (signal 9)\n",
    )

    def shown(*options: str) -> list[str]:
        result = CliRunner().invoke(app, ["logs", "--from", "-", "--json", *options], input="".join(lines))
        assert result.exit_code == 0, result.output
        return result.output.splitlines(keepends=True)

    assert shown("--rank", "1") == [lines[1], lines[2]]
    assert shown("--rank", "0", "--group", "g1") == [lines[0]]
    assert shown("--group", "g1") == [lines[0], lines[1], lines[3], lines[5]]
    none = CliRunner().invoke(app, ["logs", "--from", "-", "--rank", "7", "-g", "g1"], input="".join(lines))
    assert "There is no line of rank 7 of group 'g1'. A rank logs what goes wrong" in str(none.exception)
