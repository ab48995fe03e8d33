"""`ryz bench engine` as a command: refused plans, tables, failures, and interruptions."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from benchmarks.engine import engine as bench
from benchmarks.engine.driver import rank_options
from benchmarks.engine_plans import EnginePlan, model_name
from benchmarks.lib.measuring import BenchError, Progress
from cli.bench.commands import app
from cli.bench.engine.bench_engine import remarks
from cli.bench.inputs import with_model
from cli.console import CommandError
from cli.stack.model_dir import demo_model
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.failures import EngineFailed
from tests.kits.bench.reports import REPORT
from tests.kits.waiting import PATIENCE_S, wait_for


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "int4"], "--precision is one of fp32, bf16, int8, codes"),
        (["--kernels", "fast"], "--kernels is one of auto, native, avx512, avxvnni, avx2, plain"),
        (["--batches", "0"], "--batches takes numbers from 1"),
        (["--tp", "two"], "--tp takes numbers from 1"),
        (["--tp", "3"], "tensor_parallel=3"),
        (["--peer", "ollama"], "--peer is one of transformers, llama.cpp, vllm, openvino, got 'ollama'"),
        (["--prompt", "500", "--tokens", "48"], "more than the model's context of 512"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--device", "tpu"], "--device is one of cpu, cuda"),
        (["--device", "cuda", "--precision", "bf16,int8"], "fp32 and bf16, and --precision names int8"),
        (["--device", "cuda", "--http"], "measure on CPUs only"),
        (["--device", "cuda", "--peer", "llama.cpp"], "choose of transformers"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(tiny: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["engine", "--model", str(tiny), *options])
    assert isinstance(result.exception, CommandError), result.output
    assert result.exception.exit_code == 2
    assert message in str(result.exception)


def test_a_gpu_computes_in_the_type_of_the_precision(tiny: Path) -> None:
    plan = EnginePlan(model=tiny, device="cuda", token_budget=4096)
    for precision in ("fp32", "bf16"):
        run = rank_options(plan, precision, 1, 1).run
        assert (run.device, run.dtype, run.precision, run.token_budget) == ("cuda", precision, "auto", 4096)
    run = rank_options(EnginePlan(model=tiny), "int8", 1, 1).run
    assert (run.device, run.dtype, run.precision) == ("cpu", "auto", "int8")


def test_a_model_may_have_a_name(tiny: Path) -> None:
    assert with_model(EnginePlan(model=Path("demo"))).model == demo_model()
    assert with_model(EnginePlan(model=tiny)).model == tiny
    assert (model_name(tiny), model_name(Path("a/small-1b.gguf")), model_name(None)) == (
        "tiny", "small-1b", "demo",
    )  # fmt: skip


def test_a_peer_that_is_not_installed_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.known.missing_packages", lambda *_: ["openvino"])
    for command in ("engine", "quality"):
        result = CliRunner().invoke(app, [command, "--model", str(tiny), "--peer", "openvino"])
        assert isinstance(result.exception, CommandError)
        assert "--peer openvino needs openvino, not installed for" in str(result.exception)
        assert "DIR/openvino/bin/pip install openvino-genai" in str(result.exception)
    result = CliRunner().invoke(app, ["quality", "--model", str(tiny), "--peer", "transformers"])
    assert "choose of llama.cpp, vllm, openvino" in str(result.exception)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_shows_tables_or_one_object(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    async def measure(plan: EnginePlan, start_stack: object, progress: Progress) -> dict[str, Any]:
        progress("something")
        assert (plan.tp, plan.precision, plan.peers) == ([2], ["int8"], ["transformers"])
        return dict(REPORT)

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(bench, "measure", measure)
    options = ["--tp", "2", "--precision", "int8", "--peer", "transformers", *(["--json"] if as_json else [])]
    result = CliRunner().invoke(app, ["engine", "--model", str(tiny), *options])
    signal.signal(signal.SIGTERM, handler)
    assert result.exit_code == 0, result.exception
    if as_json:
        printed = json.loads(result.stdout)
        assert printed["rows"] == REPORT["rows"]
        assert {"machine", "commit", "load_s", "peak_rss_mb"} < set(printed)
    else:
        for text in ("1,500", "x3.00", "95% of independent ranks", "500 Q4_0", "llama.cpp Q4_0", "0.12500"):
            assert text in result.stdout
    assert "transformers: not available: int8" in result.stderr


def test_a_disturbed_measurement_is_reported() -> None:
    row = REPORT["rows"][0]
    assert remarks([row]) == ["transformers: not available: int8"]
    (reported,) = remarks([{**row, "peers": {}, "bandwidth_share": 1.2}])
    assert reported.startswith("At batch 8 more was read than the memory gave")


def test_a_failure_is_one_sentence(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure(plan: EnginePlan, start_stack: object, progress: Progress) -> dict[str, Any]:
        raise BenchError("rank 0 is gone")

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(bench, "measure", measure)
    result = CliRunner().invoke(app, ["engine", "--model", str(tiny)])
    signal.signal(signal.SIGTERM, handler)
    assert isinstance(result.exception, CommandError)
    assert str(result.exception) == "The measurement failed: rank 0 is gone."
    assert result.exception.exit_code == 1


@pytest.mark.parametrize(
    ("end", "moment"), [(signal.SIGINT, "repeat 1"), (signal.SIGTERM, "memory bandwidth")]
)
def test_an_interrupted_bench_leaves_no_process(tiny: Path, end: signal.Signals, moment: str) -> None:
    options = ["--model", str(tiny), "--prompt", "64", "--repeats", "100", "--kernels", "plain"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "bench", "engine", *options, "--threads", "1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            if moment in line:
                break
        parent = psutil.Process(process.pid)
        wait_for(lambda: bool(parent.children(recursive=True)), "processes that measure")
        children = parent.children(recursive=True)
        os.kill(process.pid, end)
        process.stderr.read()
    assert process.wait(PATIENCE_S) == 130
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert not alive


@pytest.mark.parametrize(("kv_dtype", "kv_format"), [("auto", "fp16"), ("fp32", "fp32")])
async def test_the_format_of_the_cache_is_that_of_the_ranks(
    tiny: Path, kv_dtype: Any, kv_format: str
) -> None:
    plan = EnginePlan(model=tiny, kv_dtype=kv_dtype)
    engine = RankEngine(rank_options(plan, "int8", 1, 1))
    try:
        info = await engine.start()
    except EngineFailed as error:
        pytest.skip(f"no native kernels here: {error}")
    finally:
        await engine.stop()
    assert info.kv_format == kv_format
