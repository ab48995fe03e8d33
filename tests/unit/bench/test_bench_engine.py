"""`ryz bench engine`: the arithmetic of a row, a small run with real ranks, and refused plans."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import engine as bench
from benchmarks.engine import roofline
from benchmarks.engine.bandwidth import measure_bandwidth
from benchmarks.engine.driver import Driver, Run, kv_tokens, make_prompts
from benchmarks.engine.row import mean_step_s, peer_rows, rates, step_figures
from benchmarks.engine_plans import EnginePlan
from benchmarks.lib.child import ChildObject
from benchmarks.lib.measuring import BenchError
from benchmarks.peers.base import Timing
from benchmarks.peers.contest import peer_types
from cli.bench.own_stack import own_stack
from services.worker.engine.config.layer import ExpertsConfig, MlpConfig
from services.worker.engine.config.read_config import read_config
from services.worker.null.engine import NullEngine
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import StepPlan, StepResult
from tests.kits.bench.reports import ROW, known_bandwidth
from tests.kits.engine.shared_fork_server import sharing


@pytest.fixture(scope="module", autouse=True)
def shared_fork_server() -> Iterator[None]:
    with sharing():
        yield


class Recorder(NullEngine):
    """Records the plans it gets."""

    def __init__(self, **options: Any) -> None:
        super().__init__(tokens=[1, 2, 3], vocab_size=512, context_length=512, **options)
        self.plans: list[StepPlan] = []

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        self.plans.append(plan)
        return super().submit(plan)


async def driven(batch: int, prompt: int, tokens: int) -> tuple[Run, Recorder]:
    engine = Recorder(num_blocks=kv_tokens(batch, prompt + tokens) // 16, step_delay_s=0.001)
    driver = Driver(engine, await engine.start(), batch)
    run = await driver.run_batch(make_prompts(batch, prompt, 512, 0), tokens)
    assert engine.held_blocks == 0
    return run, engine


async def test_a_batch_is_generated_whole_and_counted_while_all_decode() -> None:
    run, engine = await driven(batch=8, prompt=128, tokens=24)
    assert [len(tokens) for tokens in run.tokens] == [24] * 8
    prompts = sum(
        len(piece.token_ids) for plan in engine.plans for piece in plan.chunks if len(piece.token_ids) > 1
    )
    assert prompts == 8 * 128
    # Steps up to the last request's first token do not count: two full steps of prompts, give or take one.
    assert 0 < 24 - len(run.steps) <= 4
    assert run.decode_tokens == 8 * len(run.steps)
    assert sum(run.step_s) == pytest.approx(run.decode_s)
    assert run.prefill_s > 0


async def test_too_few_tokens_give_no_figure() -> None:
    with pytest.raises(BenchError, match="ask for more --tokens"):
        await driven(batch=16, prompt=256, tokens=3)


def test_prompts_of_different_repeats_begin_differently() -> None:
    first = [prompt[:4] for repeat in range(4) for prompt in make_prompts(8, 32, 32_000, repeat)]
    assert len({tuple(tokens) for tokens in first}) == 32


def test_rates_are_medians() -> None:
    def run(prefill_s: float, decode_s: float) -> Run:
        return Run(prefill_s, decode_s, 40, [StepResult(step_id=1, sampled=[])] * 20, [], [[0] * 24] * 2)

    runs = [run(0.5, 1.0), run(1.0, 2.0), run(4.0, 8.0)]
    assert rates(runs, prompt=100) == {"prefill_tokens_per_s": 200.0, "decode_tokens_per_s": 20.0}
    assert mean_step_s(runs) == 0.1
    timings = [Timing(prefill_s=0.5, decode_s=2.0, tokens=[[0] * 11] * 2)]
    row = {"prompt": 100, "prefill_tokens_per_s": 200.0, "decode_tokens_per_s": 20.0}
    slower = [Timing(prefill_s=0.25, decode_s=4.0, tokens=[[0] * 11] * 2)]
    types = peer_types(["llama.cpp:Q4_0,Q8_0,Q9", "vllm:int3"], ["int8"])
    measured = {"llama.cpp Q4_0": timings, "llama.cpp Q8_0": slower}
    refusals = {"llama.cpp Q9": "no Q9", "vllm int3": "no int3"}
    found = peer_rows(row, types, measured, refusals)
    # each rate is that of the type that has the best one
    assert found["llama.cpp"] == {
        "prefill_tokens_per_s": 800.0, "prefill_type": "Q8_0", "prefill_speedup": 0.25,
        "decode_tokens_per_s": 10.0, "decode_type": "Q4_0", "decode_speedup": 2.0,
        "types": {
            "Q4_0": {"prefill_tokens_per_s": 400.0, "decode_tokens_per_s": 10.0},
            "Q8_0": {"prefill_tokens_per_s": 800.0, "decode_tokens_per_s": 5.0},
        },
        "note": "no Q9",
    }  # fmt: skip
    assert found["vllm"]["decode_tokens_per_s"] is None
    assert (found["vllm"]["note"], found["vllm"]["types"]) == ("no int3", {})


def test_a_step_is_split_into_parts_that_sum_to_it() -> None:
    step = StepResult(
        step_id=1, sampled=[], compute_s=0.010, linears_s=0.005, attention_s=0.001, collectives_s=0.002,
        sampling_s=0.0005, wait_s=0.0025,
    )  # fmt: skip
    run = Run(1.0, 0.025, 2, [step, step], [0.0125, 0.02], [[0]])
    figures = step_figures([run])
    assert figures["parts"] == {
        "linears": 5.0, "attention": 1.0, "collectives": 2.0, "sampling": 0.5, "other": 1.5, "leader": 2.5,
    }  # fmt: skip
    assert figures["collectives_share"] == 0.16
    assert figures["step_ms"] == {"p50": 12.5, "p95": 20.0, "p99": 20.0}


def test_the_roofline_counts_weights_and_contexts(tiny: Path) -> None:
    config = read_config(tiny)
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 160
    weights = 2 * layer + 512 * 64
    assert roofline.weight_bytes(config, "fp32") == 4 * weights
    assert roofline.weight_bytes(config, "int8") == weights * 34 // 32  # two bytes for the scale of 32
    expert = MlpConfig(inner=160)
    mixed = replace(config.layers[0], mlp=ExpertsConfig(count=4, chosen=1, expert=expert))
    # of 4 experts of which two rows take one each 1.75 are taken on average
    mixture = roofline.weight_bytes(replace(config, layers=(mixed, config.layers[1])), "fp32", 2)
    assert mixture == 4 * (weights + 0.75 * 3 * 64 * 160)
    assert roofline.kv_bytes(config, batch=3, context=100, kv_format="fp32") == 3 * 100 * 2 * 2 * 32 * 4
    first, second = config.layers
    windowed = replace(
        config, layers=(first, replace(second, attention=replace(second.attention, window=10)))
    )
    assert roofline.kv_bytes(windowed, batch=1, context=100, kv_format="fp16") == 110 * 2 * 32 * 2
    assert roofline.decode_bytes(config, "fp32", 3, 100, "fp32") == 4 * weights + 3 * 100 * 2 * 2 * 32 * 4


async def test_the_bandwidth_is_read_by_as_many_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.engine.bandwidth.SHARE_S", 0.01)
    assert await measure_bandwidth(2, 1, buffer_bytes=1 << 20) > 1e6


async def test_rows_with_real_ranks_and_peers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes: dict[str, dict[str, Any]] = {
        "Q4_0": {},
        "Q8_0": {"token_s": 0.002},
        "float32": {"refuse": "not available: it has no fp32"},
    }
    monkeypatch.setattr(bench, "measure_bandwidth", known_bandwidth)
    monkeypatch.setattr(
        "benchmarks.peers.contest.start_peer",
        lambda peer, kind, *_: ChildObject("tests.kits.bench.child_calls:Helper", fakes[kind]),
    )
    monkeypatch.setattr(bench, "PAUSE_S", 0)
    seen: list[str] = []
    plan = EnginePlan(
        model=tiny, tp=[1, 2], threads=1, batches=[1, 2], prompt=20, tokens=8, repeats=1, kernels="plain",
        peers=["llama.cpp:Q8_0,Q4_0", "transformers"], independent=True, quality=64,
    )  # fmt: skip
    report = await bench.measure(plan, own_stack, seen.append)
    # the peer that cannot run is not measured
    assert len(seen) == bench.num_steps(plan) - 2 * 2 * len(plan.batches) - 1
    assert [(row["tp"], row["batch"]) for row in report["rows"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for row in report["rows"]:
        assert set(row) > ROW
        assert row["precision"] == "fp32"
        assert row["decode_tokens_per_s"] > 0 < row["bandwidth_share"]
        assert row["bandwidth_gb_per_s"] == row["tp"]
        good = row["peers"]["llama.cpp"]
        assert good["decode_tokens_per_s"] == pytest.approx(1000 * row["batch"])
        assert good["decode_speedup"] == round(row["decode_tokens_per_s"] / good["decode_tokens_per_s"], 2)
        assert good["decode_type"] == "Q4_0"
        assert good["types"]["Q8_0"]["decode_tokens_per_s"] == pytest.approx(500 * row["batch"])
        assert (row["quality"]["kl"], row["quality"]["places"]) == (0, 255)
        assert good["types"]["Q8_0"]["quality"]["top1"] < 0.5
        assert row["peers"]["transformers"]["note"] == "not available: it has no fp32"
    assert report["rows"][0]["collectives_share"] == 0 < report["rows"][3]["collectives_share"]
    assert [len(one["peak_rss_mb"]) for one in report["engines"]] == [1, 2]
    assert report["load_s"] == report["engines"][0]["load_s"] > 0
    assert all(one["start_s"] >= one["load_s"] for one in report["engines"])
    (beside,) = report["independent"]
    assert (beside["tp"], beside["batch"]) == (2, 8)
    assert all(rate > 0 for rate in beside["decode_tokens_per_s"].values())


async def test_a_failed_engine_is_a_failed_measurement(tiny: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(bench, "measure_bandwidth", known_bandwidth)
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    with pytest.raises(EngineFailed, match=r"holds neither model\.safetensors"):
        await bench.measure(EnginePlan(model=tmp_path), own_stack, lambda _: None)
