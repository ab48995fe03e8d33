"""`ryz bench compare`: what counts as worse, and what cannot be compared."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.compare.compare import compare_files
from benchmarks.compare.report_figures import more_is_better
from benchmarks.lib.measuring import BenchError
from cli.bench.commands import app
from cli.console import CommandError

RESULTS = Path(__file__).parents[4] / "benchmarks" / "results"
MACHINE = {"cpu": "A", "cores": 2, "usable_cores": 2, "memory_gib": 1.0, "kernel": "k", "python": "3"}


def engine_report(decode: float = 100.0, prefill: float = 500.0, **more: Any) -> dict[str, Any]:
    row = {
        "model": "m", "precision": "int8", "tp": 1, "batch": 8,
        "prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode,
    }  # fmt: skip
    report = {
        "rows": [row],
        "load_s": 1.0,
        "peak_rss_mb": [100.0, 90.0],
        "machine": MACHINE,
        "bench": "engine",
    }
    return report | more


def serving_report(**figures: Any) -> dict[str, Any]:
    row = {"concurrency": 8, "requests_per_s": 1000.0, "p50_ms": 5.0, "p99_ms": 9.0, "errors": 0, **figures}
    cpu_ms = {"router": 0.1, "gateway": 0.2}
    return {"rows": [row], "cpu_ms_per_request": cpu_ms, "machine": MACHINE, "bench": "serving"}


def written(directory: Path, *reports: Any) -> list[Path]:
    paths = []
    for index, report in enumerate(reports):
        path = directory / f"{index}.json"
        path.write_text(json.dumps(report))
        paths.append(path)
    return paths


def test_less_throughput_and_more_time_are_worse(tmp_path: Path) -> None:
    old, new = written(tmp_path, engine_report(), engine_report(decode=90.0, prefill=600.0, load_s=1.2))
    found = compare_files(old, new)
    worse = {change.figure: round(change.worse_by, 3) for change in found.regressions(0.05)}
    assert worse == {"decode_tokens_per_s": 0.1, "load_s": 0.2}
    gains = {change.figure: round(change.worse_by, 3) for change in found.changes if change.worse_by < 0}
    assert gains == {"prefill_tokens_per_s": -0.2}
    assert found.regressions(0.25) == []


def test_figures_through_http_count_where_both_files_have_them(tmp_path: Path) -> None:
    def with_http(**figures: float) -> dict[str, Any]:
        report = engine_report()
        report["rows"][0]["http"] = {"decode_tokens_per_s": 90.0, "share_of_engine": 0.9, **figures}
        return report

    old, new, plain = written(tmp_path, with_http(), with_http(share_of_engine=0.6), engine_report())
    assert [change.figure for change in compare_files(old, new).regressions(0.05)] == ["http.share_of_engine"]
    assert compare_files(plain, new).regressions(0.0) == []


def test_memory_is_that_of_the_largest_rank(tmp_path: Path) -> None:
    old, new = written(tmp_path, engine_report(), engine_report(peak_rss_mb=[100.0, 130.0]))
    (change,) = compare_files(old, new).regressions(0.05)
    assert (change.figure, change.old, change.new) == ("peak_rss_mb", 100.0, 130.0)


def test_serving_latency_errors_and_cpu_count(tmp_path: Path) -> None:
    slower = serving_report(p99_ms=18.0, errors=3, requests_per_s=1200.0)
    slower["cpu_ms_per_request"] = {"router": 0.1, "gateway": 0.3}
    old, new = written(tmp_path, serving_report(), slower)
    worse = {change.figure for change in compare_files(old, new).regressions(0.05)}
    assert worse == {"p99_ms", "errors", "cpu_ms_per_request"}


def test_rows_of_one_file_only_and_other_machines_are_reported(tmp_path: Path) -> None:
    report = engine_report(machine={**MACHINE, "cpu": "B"})
    report["rows"].append({**report["rows"][0], "batch": 16})
    old, new = written(tmp_path, engine_report(), report)
    found = compare_files(old, new)
    assert found.only_old == []
    assert found.only_new == ["model m, precision int8, tp 1, batch 16"]
    assert found.machines == ["cpu A and B"]
    assert compare_files(new, old).only_old == found.only_new


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ([], "is no result of"),
        ({"rows": []}, "is no result of"),
        ({"rows": [{"x": 1}], "machine": MACHINE}, "has no figure that can be compared"),
        ({"rows": [1], "machine": MACHINE}, "has a row that is no object"),
        (serving_report(), "take two of the same bench"),
        ({"rows": [{**engine_report()["rows"][0], "batch": 3}], "machine": MACHINE}, "no row in common"),
        ({"rows": engine_report()["rows"] * 2, "machine": MACHINE}, "two rows of model m"),
    ],
)
def test_what_cannot_be_compared_is_named(tmp_path: Path, report: Any, message: str) -> None:
    old, new = written(tmp_path, engine_report(), report)
    with pytest.raises(BenchError, match=message):
        compare_files(old, new)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    (old,) = written(tmp_path, engine_report())
    with pytest.raises(BenchError, match="does not exist"):
        compare_files(old, tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(BenchError, match=r"broken\.json cannot be read as JSON"):
        compare_files(tmp_path / "broken.json", old)


def test_the_command_ends_with_1_when_something_got_worse(tmp_path: Path) -> None:
    old, new = written(tmp_path, engine_report(), engine_report(decode=90.0, machine={**MACHINE, "cpu": "B"}))
    result = CliRunner().invoke(app, ["compare", str(old), str(new)])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 1
    assert "decode_tokens_per_s of model m" in str(result.exception)
    assert "(-10.0%)" in str(result.exception)
    assert "The machines differ: cpu A and B." in result.stderr
    allowed = CliRunner().invoke(app, ["compare", str(old), str(new), "--threshold", "10"])
    assert allowed.exit_code == 0
    assert "Nothing is worse by more than 10%" in allowed.stdout


def test_the_command_shows_rows_that_are_gone(tmp_path: Path) -> None:
    report = engine_report()
    report["rows"].append({**report["rows"][0], "batch": 16})
    old, new = written(tmp_path, report, engine_report())
    result = CliRunner().invoke(app, ["compare", str(old), str(new)])
    assert result.exit_code == 0
    assert "only in the old file: model m, precision int8, tp 1, batch 16" in result.stderr


@pytest.mark.parametrize("threshold", ["x", "-1%", "100"])
def test_a_wrong_threshold_is_named(tmp_path: Path, threshold: str) -> None:
    old, new = written(tmp_path, engine_report(), engine_report())
    result = CliRunner().invoke(app, ["compare", str(old), str(new), f"--threshold={threshold}"])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2
    assert "--threshold takes a percentage" in str(result.exception)


def test_files_of_other_kinds_end_with_2(tmp_path: Path) -> None:
    old, new = written(tmp_path, engine_report(), serving_report())
    result = CliRunner().invoke(app, ["compare", str(old), str(new)])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2


def test_from_no_errors_to_some_is_worse(tmp_path: Path) -> None:
    old, new = written(tmp_path, serving_report(), serving_report(errors=1))
    result = CliRunner().invoke(app, ["compare", str(old), str(new)])
    assert "errors of concurrency 8 (from 0)" in str(result.exception)


@pytest.mark.parametrize(
    ("figure", "better"),
    [
        ("requests_per_s", True), ("load_s", False), ("pause_ms.p99", False), ("ratio", True),
        ("http.decode_tokens_per_s", True), ("cpu_ms_per_token.gateway", False), ("least_ratio", True),
        ("errors", False), ("chats.kl", False), ("chats.top1", True), ("seed", None), ("turns", None),
    ],
)  # fmt: skip
def test_names_of_figures_say_whether_more_is_better(figure: str, better: bool | None) -> None:
    assert more_is_better(figure) is better


def test_each_result_file_of_a_bench_can_be_compared_with_itself() -> None:
    files = [file for file in RESULTS.glob("*.json") if not file.name.startswith("chaos-")]
    assert len(files) > 20
    for file in files:
        found = compare_files(file, file)
        assert found.changes, file.name
        assert not found.regressions(0.0), file.name
