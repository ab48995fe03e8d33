"""Runs `ryz bench adapter-pool` with more adapters than its stack has memory for."""

import asyncio
import json
import sys
from subprocess import PIPE

OPTIONS = "--adapters 2,4 --slots 2 --rank 64 --requests 12 --rounds 1 --concurrency 4 --tokens 4 --loads 6"


async def test_each_number_of_adapters_gets_a_row() -> None:
    command = ["bench", "adapter-pool", "--json", *OPTIONS.split()]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli", *command, stdout=PIPE, stderr=PIPE
    )
    printed, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    report = json.loads(printed)
    assert [row["adapters"] for row in report["rows"]] == [2, 4]
    for row in report["rows"]:
        assert row["requests"] == 12
        assert 0 < row["first_token_p50_ms"] <= row["first_token_p99_ms"] <= row["first_token_longest_ms"]
        assert row["tokens_per_s"] > 0
    assert (report["slots"], report["rank"], report["model"]) == (2, 64, "demo")
    loads = {row["what"]: row for row in report["loads"]}
    assert list(loads) == ["register", "first token, absent", "first token, there", "added by the load"]
    for row in report["loads"]:
        assert row["p50_ms"] <= row["p95_ms"] <= row["longest_ms"]
    assert loads["register"]["p50_ms"] > 0
