"""Runs `ryz bench sessions` with two policies, each on its own stack with the demo model."""

import asyncio
import json
import sys
from subprocess import PIPE
from typing import Any

import pytest

OPTIONS = "--policies hybrid,round_robin --sessions 8 --groups 2 --clients 4 --warmup 1 --seed 3"
pytestmark = pytest.mark.timeout(900)  # up to three measurements, with two stacks each
MIN_TURNS = 16  # so that one request more at one group is little


async def measure() -> dict[str, Any]:
    """The report of the shortest measurement in which each policy has enough turns."""
    for duration_s in ("2", "8", "32"):
        command = ["bench", "sessions", "--json", *OPTIONS.split(), "--duration", duration_s]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cli", *command, stdout=PIPE, stderr=PIPE
        )
        printed, said = await process.communicate()
        assert process.returncode == 0, said.decode()
        report: dict[str, Any] = json.loads(printed)
        if all(row["turns"] >= MIN_TURNS for row in report["rows"]):
            break
    return report


async def test_each_policy_gets_a_row_and_no_turn_fails() -> None:
    report = await measure()
    hybrid, turns = report["rows"]
    assert (hybrid["policy"], turns["policy"]) == ("hybrid", "round_robin")
    for row in report["rows"]:
        assert row["errors"] == 0, row.get("error_kinds")
        assert row["turns"] >= MIN_TURNS
        assert set(row["computed_tokens"]) == {"g0", "g1"}
        assert min(row["computed_tokens"].values()) > 0
        assert row["hit_rate"] > 0.2
        assert 0 < row["decision_p50_us"] <= row["decision_p99_us"]
        assert 0 < row["ttft_p50_ms"] <= row["ttft_p99_ms"]
    assert turns["reasons"] == {"turn": 1.0}
    assert turns["imbalance_requests"] < 0.2
    assert {"machine", "commit", "seed"} <= set(report)


@pytest.mark.parametrize(
    ("options", "problem"), [("--policies often", "--policies is one of"), ("--zipf 9", "--zipf")]
)
async def test_a_wrong_option_is_named(options: str, problem: str) -> None:
    command = [sys.executable, "-m", "cli", "bench", "sessions", *options.split()]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    _, said = await process.communicate()
    assert process.returncode == 2
    assert problem in said.decode()
