"""`ryz bench serving` against a server in this process: its report, or a clear error without a server."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.lib.cpu import CpuMeter
from benchmarks.lib.machine import commit, machine
from benchmarks.lib.measuring import BenchError
from benchmarks.lib.stack import RunningStack
from benchmarks.serving.plan import ServingPlan, Transport
from benchmarks.serving.serving import LOAD, measure, measure_in_turns
from cli.bench.commands import app
from cli.bench.serving.bench_serving import OURS, in_turns
from cli.console import CommandError
from tests.kits.bench.answers import answering, chunks, completion, http
from tests.kits.bench.long_enough import long_enough
from tests.kits.gateway.with_leader import gateway_with_leader
from tests.kits.servers import free_port

Report = dict[str, Any]


async def test_levels_carry_figures_and_cpu_of_every_process() -> None:
    phases: list[str] = []
    numbers: list[int] = []

    async def levels(seconds: float) -> Report:
        phases.clear()
        numbers.clear()

        def answer(number: int, _: bytes) -> bytes:
            numbers.append(number)
            return http(completion())

        async with answering(answer) as port:
            plan = ServingPlan(concurrency=[1, 2], duration=seconds, warmup=0.1)
            stack = RunningStack(f"http://127.0.0.1:{port}", "demo", {"server": os.getpid()})
            return await asyncio.to_thread(measure, plan, stack, phases.append) | {"seconds": seconds}

    report = await long_enough(levels, 0.3)
    rows = report["rows"]
    assert [row["concurrency"] for row in rows] == [1, 2]
    assert all(
        set(row) == {"concurrency", "requests_per_s", "p50_ms", "p95_ms", "p99_ms", "errors"} for row in rows
    )
    assert all(row["errors"] == 0 and row["requests_per_s"] > 0 for row in rows)
    assert sum(row["requests_per_s"] for row in rows) * report["seconds"] <= len(numbers)
    assert set(report["cpu_ms_per_request"]) == {"server", LOAD}
    assert report["cpu_ms_per_request"]["server"] > 0
    assert phases == [
        f"concurrency {level}: {phase}" for level in (1, 2) for phase in ("warm-up", "measuring")
    ]


@pytest.mark.parametrize(("stream", "key"), [(False, ""), (True, ""), (True, "sk-of-acme-0123456789")])
async def test_all_apis_are_measured_on_one_stack(stream: bool, key: str) -> None:
    keys: dict[str, Any] = {"api_keys": f"{key}:acme"} if key else {}
    transports: list[Transport] = ["http", "grpc", "realtime"]

    async def all_of_them(seconds: float) -> Report:
        async with gateway_with_leader(grpc_port=free_port(), **keys) as gateway:
            plan = ServingPlan(concurrency=[2], duration=seconds, warmup=0.5, tokens=4, stream=stream,
                               transports=transports, api_key=key)  # fmt: skip
            stack = RunningStack(
                gateway.url, "demo", {"server": os.getpid()}, grpc=f"127.0.0.1:{gateway.grpc_port}"
            )
            return await asyncio.to_thread(measure, plan, stack, lambda _: None)

    report = await long_enough(all_of_them, 1.0)
    assert [row["transport"] for row in report["rows"]] == transports
    assert all(row["errors"] == 0 and row["requests_per_s"] > 0 for row in report["rows"]), report["rows"]
    assert report["cpu_ms_per_grpc_request"]["server"] > 0
    assert report["cpu_ms_per_realtime_request"]["server"] > 0


async def test_a_stack_without_grpc_is_reported() -> None:
    plan = ServingPlan(concurrency=[1], transports=["grpc"])
    with pytest.raises(BenchError, match="--grpc HOST:PORT"):
        measure(plan, RunningStack("http://127.0.0.1:1", "demo"), lambda _: None)


async def test_errors_are_in_the_row_with_their_kinds() -> None:
    replies = {0: http(b"no", "500 Oops")}

    async def streams(seconds: float) -> Report:
        async with answering(lambda n, _: replies.get(n, http(chunks()))) as port:
            plan = ServingPlan(concurrency=[1], duration=seconds, warmup=0.0, stream=True)
            stack = RunningStack(f"http://127.0.0.1:{port}", "demo")
            return await asyncio.to_thread(measure, plan, stack, lambda _: None)

    (row,) = (await long_enough(streams, 0.3))["rows"]
    assert row["errors"] == 1
    assert row["error_kinds"] == {"status 500: no": 1}
    assert row["ttft_p50_ms"] > 0
    assert row["events_per_answer"] == 1


async def test_no_right_answer_is_a_failure_with_its_reason() -> None:
    async with answering(lambda *_: http(b"no", "500 Oops")) as port:
        plan = ServingPlan(concurrency=[1], duration=0.2, warmup=0.0)
        stack = RunningStack(f"http://127.0.0.1:{port}", "demo")
        with pytest.raises(BenchError, match="no right answer at concurrency 1: status 500"):
            await asyncio.to_thread(measure, plan, stack, lambda _: None)


def test_a_process_that_ended_spoils_the_measurement() -> None:
    child = subprocess.Popen(["sleep", "30"])
    meter = CpuMeter({"gone": child.pid})
    meter.start()
    child.kill()
    child.wait()
    with pytest.raises(BenchError, match=f"process {child.pid} ended"):
        meter.read()


def test_what_a_child_spent_counts_when_it_has_ended() -> None:
    burn = (
        "t = __import__('time'); [None for _ in iter(t.process_time, 1) if t.process_time() > 0.3 and exit()]"
    )
    with subprocess.Popen(
        ["sh", "-c", f'"{sys.executable}" -c "{burn}"; echo; exec sleep 60'], stdout=-1
    ) as root:
        meter = CpuMeter({"server": root.pid})
        meter.start()
        assert root.stdout is not None
        root.stdout.readline()  # the child has ended, and its parent waited for it
        spent = meter.read()["server"]
        root.kill()
    assert 0.2 < spent < 5


async def test_the_command_prints_one_json_object_on_stdout() -> None:
    async with answering(lambda *_: http(completion())) as port:
        options = [
            "--url",
            f"http://127.0.0.1:{port}",
            "--concurrency",
            "2",
            "--duration",
            "2",
            "--warmup",
            "0",
        ]
        command = [sys.executable, "-m", "cli", "bench", "serving", *options, "--json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        printed, _ = await process.communicate()
    assert process.returncode == 0
    report = json.loads(printed)
    assert set(report) == {"bench", "rows", "cpu_ms_per_request", "machine", "commit"}
    assert report["machine"]["usable_cores"] >= 1
    assert LOAD in report["cpu_ms_per_request"]


@pytest.mark.parametrize("text", ["", "0", "1,x", "5000", "1;2"])
def test_a_wrong_concurrency_is_named(text: str) -> None:
    result = CliRunner().invoke(app, ["serving", "--concurrency", text])
    assert isinstance(result.exception, CommandError)
    assert "--concurrency takes numbers" in str(result.exception)


def test_machine_facts_are_there() -> None:
    facts = machine()
    assert facts["cpu"] != "unknown"
    assert facts["python"]
    assert commit() != "unknown" or not os.path.exists(".git")


def test_a_peer_needs_a_model_that_both_sides_read_and_its_own_packages(tmp_path: Path) -> None:
    runner = CliRunner()
    alone = runner.invoke(app, ["serving", "--peer", "dynamo"])
    assert isinstance(alone.exception, CommandError)
    assert alone.exception.exit_code == 2
    assert "--model DIR" in str(alone.exception)
    (tmp_path / "tokenizer.json").write_text("{}")
    words = ["serving", "--peer", "dynamo", "--model", str(tmp_path), "--peer-envs", str(tmp_path)]
    missing = runner.invoke(app, words)
    assert isinstance(missing.exception, CommandError)
    assert missing.exception.exit_code == 2
    assert "pip install ai-dynamo==1.3.1" in str(missing.exception)


async def test_a_peer_is_measured_in_turns() -> None:
    phases: list[str] = []

    async def both(seconds: float) -> Report:
        phases.clear()
        async with answering(lambda *_: http(completion())) as port:
            plan = ServingPlan(concurrency=[1, 2], duration=seconds, warmup=0.0, rounds=2)
            stack = RunningStack(f"http://127.0.0.1:{port}", "demo", {"server": os.getpid()})
            stacks = {OURS: stack, "dynamo": stack}
            return in_turns(await asyncio.to_thread(measure_in_turns, plan, stacks, phases.append))

    report = await long_enough(both, 0.2)
    assert [(row["concurrency"], row["server"]) for row in report["rows"]] == [
        (level, server) for level in (1, 2) for server in (OURS, "dynamo")
    ]
    assert len(phases) == 2 * 2 * 2 * 2
    assert set(report["peer_cpu_ms_per_request"]) == set(report["cpu_ms_per_request"]) == {"server", LOAD}
