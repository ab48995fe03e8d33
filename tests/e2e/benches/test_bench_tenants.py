"""Runs `ryz bench tenants` with a small flood."""

import asyncio
import json
import sys
from subprocess import PIPE

from benchmarks.tenants.tenant_load import PHASES

OPTIONS = "--streams 4 --long-words 24 --words 8 --tokens 4 --clients 1 --pause 0.05 --rounds 1 --duration 6"


async def test_each_phase_gets_a_row() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli", "bench", "tenants", "--json", *OPTIONS.split(), stdout=PIPE, stderr=PIPE
    )
    printed, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    report = json.loads(printed)
    assert [row["phase"] for row in report["rows"]] == list(PHASES)
    rows = {row["phase"]: row for row in report["rows"]}
    assert rows["lone"]["flood_tokens_per_s"] == rows["lone"]["tokens_per_s"] > 0
    assert rows["calm"]["flood_tokens_per_s"] == 0 < rows["calm"]["requests"]
    assert 0 < rows["flood"]["first_token_p50_ms"] <= rows["flood"]["first_token_p99_ms"]
    assert report["p99_to_calm"] > 0
    assert sorted(report["rivals"]) == ["first", "flood"]
    (told,) = report["bounds"]
    # more slots than streams: a request waits between its arrival and its first step only
    assert 0 <= told["both_waited"] < 0.5
    assert told["holds"] is report["bound_holds"] is None
    assert told["gap_tokens"] > 0
    assert told["bound_tokens"] > 2 * told["quantum"] > 0
