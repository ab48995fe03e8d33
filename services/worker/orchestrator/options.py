"""How a group's ranks are to run, as it was asked for; what that takes of this machine is worked out by
`resource_allocator.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.worker.orchestrator.process_group_manager import RankStart
from services.worker.rank_protocol.kv_messages import KVStoreConfig
from services.worker.rank_protocol.rank_messages import Device, Dtype, Kernels, KVCold, KVDtype, Quantize

GPU_STALL_S = 10.0  # the least there: recorded graphs show no progress, and the first steps record them


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
    instance_id: the leader's, for the ranks' log lines.
    rank_nice: how far ranks give way to other processes when cores are short; 0: not at all.
    step_timeout_s: of a step with few tokens; `StepLimit` adds to it for others.
    stall_timeout_s: how long a step may stand still, likewise; 0: only the step's own limit counts.
    memory_growth_bytes: what a rank may take beyond its weights and its cache; 0: there is no limit.
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
    stall_timeout_s: float = 2.0
    memory_growth_bytes: int = 4 * 2**30
    rank_start: RankStart = "auto"
    rank_nice: int = 10
    instance_id: str = ""
    remote_ranks: int = 0
    rank_listen: str = ""
    rank_token: str = ""
    stop_timeout_s: float = 2.0
    kv_store: KVStoreConfig | None = None

    @property
    def stall_s(self) -> float:
        """How long ranks on this device may stand still in a step; 0: it is not watched."""
        if self.device == "cuda" and self.stall_timeout_s:
            return max(self.stall_timeout_s, GPU_STALL_S)
        return self.stall_timeout_s
