"""`ryz bench collectives`: a run of two ranks with small sizes, and refused arguments."""

import json
import signal

import pytest
from typer.testing import CliRunner

from benchmarks.collectives import collectives as bench
from benchmarks.lib.measuring import BenchError
from cli.bench.commands import app
from cli.console import CommandError


def test_every_backend_and_size_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUND_S", 0.002)
    monkeypatch.setattr(bench, "ROUNDS", 2)
    handler = signal.getsignal(signal.SIGTERM)
    options = ["--backends", "shm,gloo", "--sizes", "64,4096", "--json"]
    result = CliRunner().invoke(app, ["collectives", *options])
    signal.signal(signal.SIGTERM, handler)
    assert result.exit_code == 0, result.exception
    report = json.loads(result.stdout)
    assert set(report) == {"bench", "rows", "machine", "commit"}
    assert [(row["backend"], row["bytes"]) for row in report["rows"]] == [
        ("shm", 64), ("shm", 4096), ("gloo", 64), ("gloo", 4096),
    ]  # fmt: skip
    for row in report["rows"]:
        assert row["ranks"] == 2
        assert 0 < row["p50_us"] <= row["p95_us"] <= row["p99_us"]
        assert 0 < row["copy_p50_us"] <= row["copy_p99_us"]
        assert row["operations"] >= 10


def test_the_rows_are_printed_as_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure(*_: object) -> list[dict[str, object]]:
        times = {
            "p50_us": 12.5,
            "p95_us": 18.0,
            "p99_us": 20.0,
            "copy_p50_us": 2.5,
            "copy_p99_us": 3.0,
            "times_of_copy": 5.0,
        }
        return [{"backend": "gloo", "ranks": 2, "bytes": 4096, "operations": 10, **times}]

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(bench, "measure", measure)
    result = CliRunner().invoke(app, ["collectives", "--backends", "gloo", "--sizes", "4096"])
    signal.signal(signal.SIGTERM, handler)
    assert result.exit_code == 0, result.exception
    assert "gloo" in result.stdout
    assert "4,096" in result.stdout
    assert "12.5" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backends", "nccl"], "--backends is one of shm, gloo"),
        (["--sizes", "0"], "--sizes takes numbers from 1"),
        (["--sizes", "6"], "--sizes takes multiples of 4"),
    ],
)
def test_bad_input_is_refused(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["collectives", *options])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2
    assert message in str(result.exception)


def test_ranks_that_do_not_meet_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure(*_: object) -> None:
        raise BenchError("the process of CollectivesRank ended: exit code 1")

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(bench, "measure", measure)
    result = CliRunner().invoke(app, ["collectives"])
    signal.signal(signal.SIGTERM, handler)
    assert (
        str(result.exception) == "The measurement failed: the process of CollectivesRank ended: exit code 1."
    )
