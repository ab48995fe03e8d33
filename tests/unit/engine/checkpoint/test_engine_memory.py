"""The memory estimate from config and file headers, and the refusal of a model that does not fit."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker.engine.checkpoint import memory_check as memory
from services.worker.engine.checkpoint.memory_check import (
    MemoryShort,
    cache_bytes,
    require_room,
    weight_bytes,
)
from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.cold_zone import ColdZone
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.rank_protocol.run_config import EngineRunConfig
from shared.host import cgroup_memory, cores_and_memory
from tests.kits.engine.rank_threads import make_model
from tests.kits.engine.small_models import small_model

model = small_model(dtype=torch.bfloat16)


def run_of(model: Path, **changes: Any) -> EngineRunConfig:
    given: dict[str, Any] = {"kv_cache_tokens": 4096, "tensor_parallel": 2} | changes
    return EngineRunConfig(model=str(model), **given)


def have(monkeypatch: pytest.MonkeyPatch, free: int, total: int) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: free)
    monkeypatch.setattr(memory, "total_bytes", lambda: total)


def test_weights_are_counted_as_they_will_be_kept(model: Path) -> None:
    tensors = stored_tensors(model)
    file_bytes = (model / "model.safetensors").stat().st_size
    plain = weight_bytes(tensors, "fp32", native=False, tied=False)
    assert 1.95 * file_bytes < plain < 2.01 * file_bytes  # bf16 on disk, fp32 in memory
    native = weight_bytes(tensors, "fp32", native=True, tied=False)
    assert file_bytes < native * 1.02 < 1.04 * file_bytes
    embedding = 203 * 64
    assert weight_bytes(tensors, "fp32", native=True, tied=True) == native + 2 * embedding
    int8 = weight_bytes(tensors, "int8", native=True, tied=False)
    matrices = (plain - native) // 2 - embedding  # their weights: fp32 takes two bytes more
    padding = 3 * 64 * 17  # three layers: the 112 inputs of `down_proj` fill three and a half blocks
    assert native - int8 == matrices * 15 // 16 - padding  # a byte, and two for the scale of 32


def test_the_cache_is_counted_with_replicated_heads(model: Path) -> None:
    shape = read_config(model)
    # 3 layers, 4 KV heads of 16 dimensions, keys and values of 4 bytes
    assert cache_bytes(shape, 2, 32) == 2 * 4 * 3 * 4 * 16 * 32
    assert cache_bytes(shape, 8, 32) == 2 * 4 * 3 * 8 * 16 * 32
    assert cache_bytes(shape, 8, 32, "fp16") * 2 == cache_bytes(shape, 8, 32)
    assert cache_bytes(shape, 1, 1) == cache_bytes(shape, 1, 16)


def test_a_cold_zone_saves_all_but_the_last_blocks(model: Path) -> None:
    shape = read_config(model)
    half, zone = cache_bytes(shape, 1, 65536, "fp16"), ColdZone(1, (True,) * 3)
    per_block = cache_bytes(shape, 1, 16, "fp16")
    scales = 4096 * 2 * 4 * 3 * 4
    found = cache_bytes(shape, 1, 65536, "fp16", cold=zone, max_running=10)
    assert found == half // 2 + scales + (2 * 10 + 64) * per_block
    # every block of so small a cache may be in the recent window
    assert cache_bytes(shape, 1, 32, "fp16", cold=zone, max_running=10) == 3 * per_block + 2 * 2 * 4 * 3 * 4
    one_layer = ColdZone(1, (False, True, False))
    assert found < cache_bytes(shape, 1, 65536, "fp16", cold=one_layer, max_running=10) < half


def test_layers_with_a_window_have_fewer_blocks_also_compressed(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    options = {"use_sliding_window": True, "sliding_window": 20, "layer_types": kinds}
    shape = read_config(make_model(tmp_path, "qwen3", **options))
    block = cache_bytes(shape, 1, 16, "fp16") // 3  # of one layer
    assert cache_bytes(shape, 1, 160, "fp16", num_sliding=4) == (10 + 2 * 4) * block
    zone, slots = ColdZone(1, (True, True, False)), 10
    compressed = block // 2 + 2 * 4 * shape.num_kv_heads
    found = cache_bytes(shape, 1, 160, "fp16", cold=zone, max_running=9, num_sliding=4)
    assert found == (4 + 10) * compressed + 2 * slots * block + 4 * block


@pytest.mark.parametrize(
    ("total", "kind", "said"),
    [
        (1 << 40, MemoryShort, r"kv_cache_tokens=4096 needs 6\.0 MiB, but 2\.0 MiB .* are free"),
        (2 << 20, ModelError, r"in all; set a smaller kv_cache_tokens, set precision=int8, give"),
    ],
)
def test_what_does_not_fit_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, total: int, kind: type[ModelError], said: str
) -> None:
    have(monkeypatch, 2 << 20, total)
    with pytest.raises(ModelError, match=said) as refusal:
        require_room(run_of(model), read_config(model), stored_tensors(model), native=True)
    assert type(refusal.value) is kind
    assert str(model) in str(refusal.value)


def test_the_ranks_of_this_host_may_hold_more_than_their_number(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 of three has two of the four KV heads, so 3 of 6 MiB; the other two ranks are elsewhere."""
    have(monkeypatch, 1 << 20, 2 << 20)
    run = run_of(model, tensor_parallel=3, remote_ranks=2)
    with pytest.raises(ModelError, match=r"kv_cache_tokens=4096 needs 3\.0 MiB"):
        require_room(run, read_config(model), stored_tensors(model), native=True)


def test_weights_alone_are_too_large(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, 1000, 1000)
    config = run_of(model, kv_cache_tokens=0, precision="int8")
    with pytest.raises(ModelError, match=r"need 0\.\d MiB, but there are 0\.0 MiB .*; give the worker"):
        require_room(config, read_config(model), stored_tensors(model), native=True)


def test_what_fits_is_taken(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, 64 << 20, 64 << 20)
    require_room(run_of(model), read_config(model), stored_tensors(model), native=False)


def test_a_group_that_starts_again_needs_room_for_the_longest_request(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cache may have been limited for others, which have the rest of its memory."""
    shape, tensors = read_config(model), stored_tensors(model)
    run = run_of(model, kv_cache_tokens=2 * shape.context_length)
    least = cache_bytes(shape, 2, shape.context_length)
    have(monkeypatch, least, 1 << 30)
    with pytest.raises(MemoryShort):
        require_room(run, shape, tensors, native=True, mapped=True)
    require_room(run, shape, tensors, native=True, mapped=True, restarted=True)
    with pytest.raises(MemoryShort):  # without kernels a cache takes all of its memory
        require_room(run, shape, tensors, native=False, mapped=True, restarted=True)
    have(monkeypatch, least - 1, 1 << 30)
    with pytest.raises(MemoryShort, match=f"needs {least / 2**20:.1f} MiB"):
        require_room(run, shape, tensors, native=True, mapped=True, restarted=True)


def test_weights_in_files_need_no_memory_of_their_own(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The KV of 4,096 tokens takes 6 MiB, and the weights 0.3 in bf16."""
    shape, tensors = read_config(model), stored_tensors(model)
    cache = cache_bytes(shape, 2, 4096)
    have(monkeypatch, cache, 1 << 30)
    require_room(run_of(model), shape, tensors, native=True, mapped=True)
    with pytest.raises(MemoryShort):
        require_room(run_of(model), shape, tensors, native=True)
    have(monkeypatch, cache - 1, 1 << 30)
    with pytest.raises(MemoryShort):
        require_room(run_of(model), shape, tensors, native=True, mapped=True)
    have(monkeypatch, cache, cache)
    with pytest.raises(ModelError, match="in all"):
        require_room(run_of(model), shape, tensors, native=True, mapped=True)


@pytest.mark.parametrize(
    ("line", "limit", "used", "cache"),
    [
        ("0::/", "memory.max", "memory.current", "inactive_file"),
        ("0::/outside/of/the/container", "memory.max", "memory.current", "inactive_file"),
        (
            "7:cpu,memory:/",
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ],
)
def test_a_container_s_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, line: str, limit: str, used: str, cache: str
) -> None:
    own = tmp_path / "own"
    own.write_text(f"3:pids:/x\n{line}\n")
    monkeypatch.setattr(cgroup_memory, "MOUNT", tmp_path)
    monkeypatch.setattr(cgroup_memory, "OWN", own)
    machine = cores_and_memory.available_bytes()
    assert machine > 2**20
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("3000000\n")
    (tmp_path / used).write_text("2500000\n")
    (tmp_path / limit).with_name("memory.stat").write_text(f"anon 5\n{cache} 100000\n")
    assert cores_and_memory.available_bytes() == 600000
    assert cores_and_memory.total_bytes() == 3000000
    for none in ("max", str(2**63 - 4096)):
        (tmp_path / limit).write_text(f"{none}\n")
        assert cores_and_memory.available_bytes() > 2**20
        assert cores_and_memory.total_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_tightest_of_the_cgroups_around_a_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text("0::/outer/inner\n")
    monkeypatch.setattr(cgroup_memory, "MOUNT", tmp_path)
    monkeypatch.setattr(cgroup_memory, "OWN", tmp_path / "own")
    (tmp_path / "outer/inner").mkdir(parents=True)
    for name, limit, used in (("outer", 5_000_000, 4_900_000), ("outer/inner", 4_000_000, 2_000_000)):
        (tmp_path / name / "memory.max").write_text(f"{limit}\n")
        (tmp_path / name / "memory.current").write_text(f"{used}\n")
        (tmp_path / name / "memory.stat").write_text("inactive_file 7\n")
    assert cores_and_memory.available_bytes() == 100_007
    assert cores_and_memory.total_bytes() == 4_000_000
    (tmp_path / "own").unlink()  # as outside Linux
    assert cores_and_memory.available_bytes() > 2**20


def test_where_the_system_does_not_say_what_is_free_all_memory_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores_and_memory, "MEMINFO", tmp_path / "none")
    assert cores_and_memory.available_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
