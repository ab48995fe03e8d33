"""How a group's ranks are to run: the options, and what they mean on this machine.

Makes the one config of which each rank gets a copy with its own number, and the files that the ranks share.
Starting them is the business of `rank_engine.py`.
"""

import os
import platform
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from services.worker.domain.kv_messages import KVStoreConfig
from services.worker.domain.rank_messages import (
    Device,
    Dtype,
    Kernels,
    KVCold,
    KVDtype,
    Quantize,
    RankConfig,
    shared_bytes,
)
from services.worker.orchestrator.process_group_manager import RankStart


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEngineOptions:
    """How to run a model.

    model: directory in Hugging Face format.
    tensor_parallel: number of ranks.
    threads: of each rank; 0: the cores of this machine divided by the ranks, at least one.
    collectives: `auto` is NCCL on GPUs, else shared memory on x86-64 Linux, else Gloo.
    interface: network interface for Gloo; empty: loopback.
    quantize: `int8` stores the weights of the linear layers in 8 bits.
    kernels: `native` are compiled ones, `plain` torch operations; `auto`: native where they run.
    kv_dtype: of the KV cache; `auto`: fp16 beside int8 weights, else fp32.
    kv_cold: `fp8` compresses blocks that lie kv_hot_tokens behind a token, in the layers kv_cold_layers.
    max_running: how many sequences it computes at once; their last blocks are not compressed.
    device: `cuda` takes a GPU for each rank. dtype: what is computed in there; `auto`: bf16.
    remote_ranks: how many of the ranks come from other hosts, to `rank_listen`, with `rank_token`.
    rank_start: `fork` takes ranks from a process that has torch loaded; `spawn` starts each on its own.
    step_timeout_s: of a step with few tokens; `StepLimit` adds to it for others.
    kv_store: where KV blocks go; None: nowhere. Not with ranks of other hosts.
    kv_cache_tokens: size of the KV cache; 0: `kv_memory_share` of the free memory.
    """

    model: Path
    tensor_parallel: int = 1
    threads: int = 0
    collectives: Literal["auto", "shm", "gloo", "nccl"] = "auto"
    interface: str = ""
    quantize: Quantize = "none"
    kernels: Kernels = "auto"
    kv_dtype: KVDtype = "auto"
    kv_cold: KVCold = "none"
    kv_hot_tokens: int = 16
    kv_cold_layers: str = "all"
    max_running: int = 128
    device: Device = "cpu"
    dtype: Dtype = "auto"
    kv_cache_tokens: int = 65536
    kv_memory_share: float = 0.5
    start_timeout_s: float = 600.0
    step_timeout_s: float = 30.0
    rank_start: RankStart = "auto"
    remote_ranks: int = 0
    rank_listen: str = ""
    rank_token: str = ""
    stop_timeout_s: float = 2.0
    kv_store: KVStoreConfig | None = None


def group_config(
    options: RankEngineOptions, threads: int, address: str, stack: ExitStack
) -> tuple[RankConfig, list[int]]:
    """The config of rank 0, and the descriptors that ranks of this host inherit.

    Args:
        options: Of the group.
        threads: Of each rank.
        address: Of this host in the network of the other hosts; empty: there are none.
        stack: Closes the descriptors when the ranks have them.

    Raises:
        OSError: there is no memory for the ranks to share, or no port for them to meet at.
    """
    world = options.tensor_parallel
    config = RankConfig(
        model=str(options.model.resolve()),
        rank=0,
        world=world,
        threads=threads,
        collectives=_backend(options),
        start_timeout_s=options.start_timeout_s,
        # a rank that waits for another says so before the leader's own limit
        step_timeout_s=0.8 * options.step_timeout_s,
        quantize=options.quantize,
        kernels=options.kernels,
        kv_dtype=options.kv_dtype,
        kv_cold=options.kv_cold,
        kv_hot_tokens=options.kv_hot_tokens,
        kv_cold_layers=options.kv_cold_layers,
        max_running=options.max_running,
        device=options.device,
        dtype=options.dtype,
        kv_cache_tokens=options.kv_cache_tokens,
        kv_memory_share=options.kv_memory_share,
        interface=options.interface,
        remote=options.remote_ranks,
        address=address,
        kv_store=None if options.remote_ranks else options.kv_store,
    )
    if world == 1:
        return config, []
    if config.collectives == "shm":
        shared = os.memfd_create("ryz-ranks")
        stack.callback(os.close, shared)
        os.ftruncate(shared, shared_bytes(world))
        return msgspec.structs.replace(config, shared_fd=shared), [shared]
    meeting = stack.enter_context(socket.create_server((address or "127.0.0.1", 0)))
    host, port = meeting.getsockname()
    config = msgspec.structs.replace(config, store_fd=meeting.fileno(), store_host=host, store_port=port)
    return config, [meeting.fileno()]


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _backend(options: RankEngineOptions) -> Literal["shm", "gloo", "nccl"]:
    if options.collectives != "auto":
        return options.collectives
    if options.device == "cuda":
        return "nccl"
    if options.remote_ranks:
        return "gloo"
    shared = hasattr(os, "memfd_create") and platform.machine() in {"x86_64", "AMD64"}
    return "shm" if shared else "gloo"
