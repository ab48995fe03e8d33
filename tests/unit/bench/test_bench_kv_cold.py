"""The benchmark of the cold KV zone: the form of its result, and its sizes. No times are asserted."""

import math

import pytest

from benchmarks.engine_plans import KVColdPlan
from benchmarks.kv.kv_cold import measure
from services.worker.engine.native.build import targets
from services.worker.engine.native.library import kernels

pytestmark = pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")


@pytest.mark.parametrize("threads", [1, 2])
def test_every_kind_is_timed_and_counted(threads: int) -> None:
    plan = KVColdPlan(
        heads=4, kv_heads=2, head_dim=32, batch=3, contexts=(32, 2048), threads=threads, repeats=2
    )
    result = measure(plan)
    assert result["kernels"] == kernels().target
    assert result["compress_block_us"] > 0
    short, long = result["rows"]
    for row in (short, long):
        assert set(row["attention_us"]) == set(row["bytes_per_token"]) == {"fp32", "fp16", "fp8"}
        assert all(math.isfinite(value) and value > 0 for value in row["attention_us"].values())
    assert long["bytes_per_token"]["fp16"] == 2 * 2 * 2 * 32
    assert long["bytes_per_token"]["fp32"] == 2 * long["bytes_per_token"]["fp16"]
    # two blocks stay in full precision, in addition to the codes
    assert short["less_than_bf16"] < 0
    assert 0.48 < long["less_than_bf16"] < 0.5
