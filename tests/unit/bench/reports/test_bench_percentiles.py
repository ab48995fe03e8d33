"""The percentiles that benches tell of times, and that none tells of fewer."""

import ast
import math
from pathlib import Path

from benchmarks.lib.measuring import percentiles, spread

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
# ratios of two rows, the worst second's p99, and the lines of a plot
OTHERS = {
    "adapters/pool_load.py", "batch/batch.py", "engine/mixed_load.py", "soak/report.py",
    "tenants/tenant_load.py",
}  # fmt: skip


def test_they_are_named_by_what_they_are_of() -> None:
    assert percentiles([0.001, 0.002, 0.003], "ttft") == {
        "ttft_p50_ms": 2.0, "ttft_p95_ms": 3.0, "ttft_p99_ms": 3.0,
    }  # fmt: skip
    assert percentiles([5.0], "", "us", scale=1.0, digits=0) == {"p50_us": 5.0, "p95_us": 5.0, "p99_us": 5.0}
    assert all(math.isnan(value) for value in percentiles([], "itl").values())


def test_a_spread_has_them_too() -> None:
    assert spread([float(value) for value in range(1, 101)]) == {
        "p50": 50.5,
        "p95": 95.0,
        "p99": 99.0,
        "max": 100.0,
    }


def test_no_report_has_a_p99_without_a_p95() -> None:
    lacking = {}
    for path in BENCHMARKS.rglob("*.py"):
        texts = {
            node.value for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value
        }  # fmt: skip
        found = {text for text in texts if "p99" in text and text.replace("p99", "p95") not in texts}
        lacking[path.relative_to(BENCHMARKS).as_posix()] = found
    assert {file for file, found in lacking.items() if found} == OTHERS
