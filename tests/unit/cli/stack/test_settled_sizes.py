"""What `ryz up` settles from the files of a model and the options of a user."""

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from cli.console import CommandError
from cli.stack.machine_facts import machine_facts, measure_model
from cli.stack.memory_needs import (
    KV_TOKENS,
)
from cli.stack.model_dir import demo_model
from services.worker.engine.checkpoint.model_size import model_size
from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.config.read_config import read_config
from shared.host.cores_and_memory import total_bytes, usable_cores
from tests.kits.supervisor import options, settled


def test_parameters_are_those_in_the_files() -> None:
    size = model_size(read_config(demo_model()))
    stored = stored_tensors(demo_model()).values()
    assert size.parameters == sum(prod(one.shape) for one in stored)
    assert measure_model(demo_model()).stored_bytes == 2, "bf16, and kept so"
    assert measure_model(demo_model(), kernels=False).stored_bytes == 4, "the plain path computes in fp32"


def test_up_settles_what_it_was_not_reported(tmp_path: Path) -> None:
    given = options(
        tmp_path, engine="torch", model=demo_model(), groups=0, tensor_parallel=0, threads=0,
        precision="auto", kernels="auto", kv_cache_tokens=None,
    )  # fmt: skip
    entry, found = settled(given)
    assert (entry.groups, entry.tensor_parallel, entry.precision) == (2, 1, "bf16")
    assert entry.threads == max(1, usable_cores() // 2)
    assert entry.kv_cache_tokens == KV_TOKENS
    assert found.text.startswith("2 M parameters")
    assert machine_facts(given).store_bytes == int(total_bytes() * given.redis_memory_share)
    assert found.redis_memory_share <= given.redis_memory_share + 1e-9
    shared, _ = settled(replace(given, kv_cache_tokens=0))
    assert shared.kv_cache_tokens == 0, "the worker takes a share of the free memory"


def test_up_on_gpus_leaves_to_the_workers_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RYZ_DEVICE", "cuda")
    given = options(
        tmp_path, engine="torch", model=demo_model(), groups=0, tensor_parallel=0, threads=0,
        precision="auto", kernels="auto", kv_cache_tokens=None,
    )  # fmt: skip
    entry, found = settled(given)
    assert (entry.groups, entry.tensor_parallel, entry.precision) == (1, 1, "auto")
    assert entry.kv_cache_tokens == 0
    assert "a GPU for each rank; KV in a share of what is free there." in found.text
    entry, found = settled(replace(given, groups=2, tensor_parallel=4, kv_cache_tokens=4096))
    assert (entry.groups, entry.tensor_parallel, entry.kv_cache_tokens) == (2, 4, 4096)
    assert "KV for 4,096 tokens" in found.text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_kv_cache_that_is_too_small_is_refused_and_a_short_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setenv("RYZ_DEVICE", device)
    given = options(tmp_path, engine="torch", model=demo_model(), precision="auto", kernels="auto")
    for tokens in (10, 127):
        with pytest.raises(
            CommandError, match=r"too small for an answer.* 128 or more; 2048 hold"
        ) as refused:
            settled(replace(given, kv_cache_tokens=tokens))
        assert refused.value.exit_code == 2
    short = "The KV cache of a group holds 128 tokens, fewer than the model's context of 2,048: "
    assert short in settled(replace(given, kv_cache_tokens=128))[1].text
    for enough in (None, 0, 2048, 4096):
        assert "fewer than" not in settled(replace(given, kv_cache_tokens=enough))[1].text


def test_up_leaves_the_null_engine_as_it_is(tmp_path: Path) -> None:
    entry, found = settled(options(tmp_path, groups=0, tensor_parallel=0, threads=0, precision="auto"))
    assert (entry.groups, entry.tensor_parallel, entry.threads, found.text) == (2, 2, 1, "")
