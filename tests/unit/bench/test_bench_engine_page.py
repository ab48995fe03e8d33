"""The tables of the engine in docs/performance.md: what they say of a result file, and what they replace."""

import copy
import json
from pathlib import Path

import pytest

from tests.kits.bench.reports import QUALITY, REPORT
from tools.docs import engine_results


def test_a_result_file_becomes_a_table(tmp_path: Path) -> None:
    report = copy.deepcopy(REPORT) | {"commit": "abc", "machine": {"cpu": "CPU", "usable_cores": 2}}
    report["rows"][0]["quality"] = QUALITY
    report["engines"] = [{"kernels": "native avx2 int8, float16 KV"}]
    (tmp_path / "engine-m.json").write_text(json.dumps(report))
    lone = copy.deepcopy(report)
    lone["rows"][0]["peers"] = {}
    (tmp_path / "engine-n.json").write_text(json.dumps(lone))
    page = engine_results.render(tmp_path)
    lines = [line for line in page.splitlines() if line.startswith("| int8")]
    quality = "+25.00%, 0.1250, 75.0%"
    own = f"| int8 | 2 x 1 | 8 | 2,000 | 1,500 | {quality} "
    assert lines == [
        f"{own}| llama.cpp | 1,000 Q8_0 | x2.00 | 500 Q4_0 | x3.00 | {quality} |",
        f"{own}| transformers | - |  | - |  | not available: int8 |",
    ]
    assert "2 cores of CPU, kernels for avx2, commit abc" in page
    assert "engine-m.json" in page
    assert "engine-n.json" not in page


def test_only_what_is_between_the_marks_changes() -> None:
    page = f"before\n{engine_results.BEGIN}old\n{engine_results.END}after\n"
    changed = engine_results.with_tables(page, "new")
    assert changed == f"before\n{engine_results.BEGIN}\nnew\n{engine_results.END}after\n"
    with pytest.raises(ValueError, match="has lost a mark"):
        engine_results.with_tables("before", "new")
