"""The device of a rank: bf16 against fp32, refusals, and the GPU loading path run on a simulated GPU."""

import os
import socket
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import torch
from pydantic import ValidationError
from torch import distributed

from services.worker.engine.checkpoint.memory_check import MemoryShort
from services.worker.engine.checkpoint.weight_files import Checkpoint, open_checkpoint
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.plain.compute import PlainCompute
from services.worker.engine.plain.cuda_graphs import GraphCapture
from services.worker.engine.plain.device import require_gpu_room, take_device
from services.worker.engine.plain.gpu_kernels import gpu_kernels
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.placement import CPU, Placement
from services.worker.engine.plain.plain_cache import KVCache, block_bytes
from services.worker.engine.rank import rank_process as rank
from services.worker.engine.rank.backend import refuse_for_gpu
from services.worker.engine.rank.compute import Compute
from services.worker.orchestrator.resource_allocator import group_config
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.rank_messages import (
    FrameKind,
    FrameReader,
    RankConfig,
    RankFailed,
    pack_frame,
)
from services.worker.rank_protocol.sliding_pool import PoolSizes
from services.worker.settings import WorkerSettings
from tests.kits.engine.decode_plans import EagerCapture, decode_plans
from tests.kits.engine.devices import BF16_ERROR, FAMILIES, config, relative_error
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import (
    Blocks,
    make_model,
    new_sequence,
    plan_logits,
    transformers_logits,
)

BF16 = Placement(dtype=torch.bfloat16)


def half(
    capture: GraphCapture | None,
    checkpoint: Checkpoint,
    shape: ModelConfig,
    collectives: Collectives,
    num_blocks: int,
) -> Compute:
    model = Decoder(checkpoint, shape, collectives, BF16)
    return PlainCompute(
        model, KVCache(shape, PoolSizes(num_blocks), collectives.rank, collectives.world, BF16), capture
    )


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Makes torch report two GPUs; returns the devices that were made current."""
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    return taken


# --- bf16 ---


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_is_as_near_to_fp32_as_transformers_in_bf16(tmp_path: Path, family: str) -> None:
    model = make_model(tmp_path, family, **FAMILIES[family])
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    text = torch.randint(0, 203, (80,), generator=torch.Generator().manual_seed(1)).tolist()
    blocks = Blocks(64)
    plans = [StepPlan(step_id=0, admit=[new_sequence(1, text[:30])], chunks=[blocks.chunk(1, 0, text[:30])])]
    plans += [StepPlan(step_id=at, chunks=[blocks.chunk(1, at, text[at : at + 1])]) for at in range(30, 80)]
    found = plan_logits(model, 1, plans, compute=partial(half, None))
    exact = transformers_logits(model, text)[29:]
    with torch.no_grad():
        rounded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        theirs = relative_error([rounded(torch.tensor([text])).logits[0, 29:].float()], [exact])
    assert 1e-4 < relative_error([torch.cat(found)], [exact]) < 1.2 * theirs


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_batches_in_bf16_are_near_to_those_in_fp32(tmp_path: Path, family: str, world: int) -> None:
    model, plans = make_model(tmp_path, family, **FAMILIES[family]), decode_plans()
    expected = plan_logits(model, world, plans)
    found = plan_logits(model, world, plans, compute=partial(half, None))
    assert all(rows.dtype == torch.float32 for rows in found)
    assert 1e-4 < relative_error(found, expected) < BF16_ERROR
    recorded = plan_logits(model, world, plans, compute=lambda *rest: half(EagerCapture(), *rest))
    assert relative_error(recorded, expected) < BF16_ERROR


def test_the_cache_has_the_type_of_the_weights(model: Path) -> None:
    shape = read_config(model)
    cache = KVCache(shape, PoolSizes(3), 0, 1, BF16)
    assert cache.layers[0].keys.dtype == torch.bfloat16
    assert not cache.layers[0].keys.any()
    assert block_bytes(shape, 0, 1, BF16) * 2 == block_bytes(shape, 0, 1)


def test_the_oracle_keeps_its_tensors() -> None:
    tensor = torch.ones(2)
    assert CPU.move(tensor) is tensor
    assert CPU.move_optional(None) is None
    assert (CPU.format, BF16.format, CPU.on_gpu) == ("fp32", "bf16", False)


# --- which GPU ---


def test_rank_r_takes_gpu_r(gpus: list[torch.device]) -> None:
    placements = [take_device(config(rank=r, tensor_parallel=2)) for r in range(2)]
    assert placements == [Placement(torch.device("cuda", r), torch.bfloat16) for r in range(2)]
    assert gpus == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert take_device(config(dtype="fp32")).dtype == torch.float32


def test_a_rank_of_another_host_takes_the_first_gpu_there(gpus: list[torch.device]) -> None:
    assert take_device(config(rank=2, tensor_parallel=3, remote_ranks=1)).device == torch.device("cuda", 0)


def test_a_cpu_is_what_it_was() -> None:
    assert take_device(config(device="cpu")) == CPU
    with pytest.raises(ModelError, match="dtype=bf16 is for device=cuda"):
        take_device(config(device="cpu", dtype="bf16"))


def test_without_triton_the_operators_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "services.worker.engine.plain.triton_kernels.attend", raising=False)
    gpu = Placement(torch.device("cuda", 7))  # no other test asks for it: the answer is kept
    with structlog.testing.capture_logs() as logs:
        assert gpu_kernels(gpu) is None
        assert gpu_kernels(gpu) is None
    assert [line["event"] for line in logs] == ["computing without Triton kernels, which is slower"]
    assert gpu_kernels(CPU) is None


def test_no_gpu_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(pack_frame(FrameKind.CONFIG, config()))
        assert rank.serve(theirs, 0.0) == 2
        ((kind, body),) = FrameReader().feed(ours.recv(65536))
    assert kind is FrameKind.FAILED
    failed = msgspec.msgpack.decode(body, type=RankFailed)
    assert failed.refused
    assert failed.message.startswith("device=cuda, but torch ")
    assert "install a CUDA build of torch" in failed.message
    assert "\n" not in failed.message


def test_more_ranks_than_gpus_are_refused(gpus: list[torch.device]) -> None:
    for own in range(3):
        with pytest.raises(ModelError, match=r"with 3 ranks on this host.* finds 2 .*tensor_parallel=2"):
            take_device(config(rank=own, tensor_parallel=3))
    assert gpus == []


def test_a_build_without_nccl_is_refused(gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: False)
    with pytest.raises(ModelError, match=r"needs NCCL.*tensor_parallel=1"):
        rank.connect(config(tensor_parallel=2))


def test_nccl_is_told_which_gpu_and_how_long(
    gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    options_given: dict[str, Any] = {}
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(
        distributed, "TCPStore", lambda *index, **options: options_given.update(options, place=index)
    )
    monkeypatch.setattr(
        distributed, "init_process_group", lambda name, **how: options_given.update(how, name=name)
    )
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    given: dict[str, Any] = {
        "tensor_parallel": 2,
        "step_timeout_s": 25,
        "store_host": "h",
        "store_port": 7,
        "gloo_interface": "eth9",
    }
    made = rank.connect(config(rank=1, **given))
    assert (made.rank, made.world) == (1, 2)
    assert (options_given["name"], options_given["place"]) == ("nccl", ("h", 7, 2))
    assert (options_given["rank"], options_given["world_size"], options_given["is_master"]) == (1, 2, False)
    assert options_given["device_id"] == torch.device("cuda", 1)
    assert options_given["timeout"].total_seconds() == 20
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth9"


# --- options that a GPU does not support ---


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "int8"}, "precision=int8 is for CPUs"),
        ({"kernels": "native"}, "kernels=native is for CPUs"),
        ({"kv_dtype": "fp16"}, "kv_dtype=fp16 with device=cuda"),
        ({"kv_dtype": "fp32"}, "the type of the weights, bf16"),
    ],
)
def test_what_was_chosen_by_name_is_never_replaced(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        refuse_for_gpu(config(**changes), BF16)


@pytest.mark.parametrize("changes", [{}, {"kernels": "plain"}])
def test_what_a_gpu_has_is_not_refused(changes: dict[str, Any]) -> None:
    refuse_for_gpu(config(**changes), BF16)
    refuse_for_gpu(config(kv_dtype="fp32"), CPU)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"collectives": "nccl"}, "RYZ_DEVICE=cpu"),
        ({"collectives": "shm", "device": "cuda"}, "RYZ_DEVICE=cuda"),
        ({"collectives": "gloo", "device": "cuda"}, "RYZ_DEVICE=cuda"),
    ],
)
def test_collectives_of_another_device_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        WorkerSettings(model="m", **changes)
    assert WorkerSettings(model="m", device="cuda", collectives="nccl").collectives == "nccl"


def test_gpus_meet_over_nccl(model: Path) -> None:
    with ExitStack() as stack:
        options = rank_options(model=model, tensor_parallel=2, device="cuda", dtype="fp32")
        made, descriptors = group_config(options, 1, "", stack)
        assert (made.run.collectives, made.run.device, made.run.dtype) == ("nccl", "cuda", "fp32")
        assert descriptors == [made.store_fd]


# --- memory ---


def test_what_does_not_fit_is_refused(model: Path) -> None:
    shape, settings = read_config(model), config(model, kv_cache_tokens=2**20)
    cache = 2**16 * block_bytes(shape, 0, 1, BF16)
    with open_checkpoint(model) as checkpoint:
        weights = sum(
            stored.shape[0] * (stored.shape[1:] or (1,))[0] for stored in checkpoint.table.tensors.values()
        )
        needed = 2 * weights + cache

        def check(free: int, total: int, settings: RankConfig = settings) -> None:
            require_gpu_room(settings, shape, checkpoint.table.tensors, BF16, (free, total))

        check(needed, needed)
        with pytest.raises(
            MemoryShort, match=r"kv_cache_tokens=1048576 needs .* are free; set a smaller kv_cache"
        ):
            check(needed - 1, needed)
        with pytest.raises(ModelError, match=r"has .* in all; set a smaller kv_cache_tokens") as refusal:
            check(needed - 1, needed - 1)
        assert not isinstance(refusal.value, MemoryShort)
        with pytest.raises(ModelError, match="set a larger tensor_parallel or serve a smaller") as refusal:
            check(1000, 1000, config(model))
        assert "kv_cache_tokens" not in str(refusal.value)


# --- the whole path, with the CPU in the place of a GPU ---
