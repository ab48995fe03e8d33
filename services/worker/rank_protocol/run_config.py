"""The run configuration of a group's engine: how a model is computed.

`WorkerSettings` inherits these fields, so each of them is also a setting `RYZ_<NAME>`. The leader works out
`threads` and `collectives`, and sends the object to the ranks in `RankConfig`. Ranks import this module, so
it does not import pydantic.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from shared.setting_types import UpToDay, UpToHour

Precision = Literal["fp32", "bf16", "int8", "codes"]
PrecisionChoice = Literal["auto", "fp32", "bf16", "int8", "codes"]
Kernels = Literal["auto", "native", "avx512", "avxvnni", "avx2", "plain"]
KVDtype = Literal["auto", "fp32", "fp16"]
KVCold = Literal["none", "fp8"]
Device = Literal["cpu", "cuda"]
Dtype = Literal["auto", "fp32", "bf16"]
Collectives = Literal["auto", "shm", "gloo", "nccl"]
Ranks = Annotated[int, Interval(ge=1, le=64)]
Threads = Annotated[int, Interval(ge=0, le=1024)]
KVTokens = Annotated[int, Interval(ge=0, le=2**31)]

# Limits on ranks are counted in time that they could use; in all, at most so many times as much passes. One
# that gets no core, and so neither hangs nor makes progress, is given up then: 30 s for a limit of 2 s.
STRETCH = 15.0
_COLLECTIVE_SHARE = 0.8  # of a step's time limit: a rank that waits for another one says so before the leader


@dataclass(frozen=True, kw_only=True)
class EngineRunConfig:
    """How the ranks of a group compute a model."""

    engine: Literal["torch", "null", "remote", "vllm"] = "torch"
    """`torch` computes a model in ranks, `vllm` in vLLM's own processes, `remote` has a server of others
    compute it, at `RYZ_REMOTE_URL`; `null` answers without weights, for measurements."""
    model: str = ""
    """Directory in Hugging Face format, or a GGUF file (of a split one the first part); only the null engine
    goes without. Of a model that a server of others computes, weights are not read, and may be missing."""
    tensor_parallel: Ranks = 1
    """Ranks that compute the model together."""
    threads: Threads = 0
    """Threads of each rank; 0: the cores of this host divided by the ranks."""
    device: Device = "cpu"
    """Where ranks compute; with `cuda`, rank r takes GPU r. See docs/gpu.md."""
    dtype: Dtype = "auto"
    """Type of weights, activations and KV cache on a GPU; `auto`: bf16."""
    collectives: Collectives = "auto"
    """How ranks exchange tensors: shared memory on one host, Gloo, or NCCL between GPUs."""
    gloo_interface: str = ""
    """Network interface for Gloo; empty: loopback, or the one that reaches the other hosts."""
    remote_ranks: Annotated[int, Interval(ge=0, le=63)] = 0
    """How many of the ranks, the last ones, are started by hand on other hosts; see docs/two-hosts.md."""
    precision: PrecisionChoice = "auto"
    """How matrices are held and multiplied; `auto`: as the files have them; `fp32`: stored values, fp32
    arithmetic; `bf16`: both in bf16; `int8`: in 8 bits, in blocks of 32 with a scale each; `codes`: those
    of a quantized file. See docs/models.md."""
    kernels: Kernels = "auto"
    """What ranks compute with: compiled kernels (`native`: the best of this processor; `avx512`, `avxvnni`,
    `avx2`: of that instruction set), or plain torch operations; `auto`: kernels where they run."""
    max_running: Annotated[int, Interval(ge=1, le=4096)] = 128
    """Sequences computed at once; a request has n of them."""
    token_budget: Annotated[int, Interval(ge=1, le=131_072)] = 512
    """Tokens per step, decodes and prefill chunks together; at least `RYZ_MAX_RUNNING`."""
    kv_cache_tokens: KVTokens = 65_536
    """Size of the KV cache in tokens; 0: `RYZ_KV_MEMORY_SHARE` of the free memory."""
    kv_memory_share: Annotated[float, Interval(gt=0, lt=1)] = 0.5
    """Share of the free memory for the KV cache if its size is 0; `ryz up` divides it by its groups."""
    kv_dtype: KVDtype = "auto"
    """Type of the KV cache; `auto`: fp32 if `precision` is, else fp16."""
    kv_cold: KVCold = "none"
    """`fp8` compresses the KV cache behind its recent window, with a small loss."""
    kv_hot_tokens: Annotated[int, Interval(ge=0, le=4096)] = 16
    """With `fp8`: tokens before its own block that a token sees in full precision, in blocks of 16."""
    kv_cold_layers: str = "all"
    """With `fp8`: the layers that are compressed, such as `0-3,8`; the others stay in full precision."""
    attention: str = "full"
    """Which earlier tokens a token reads in layers without a sliding window: `full`, or a policy such as
    `window=4096,sinks=64,stride=16`: the last ones, the first ones, and of the pages of 16 tokens in between
    each 16th. See docs/long-contexts.md."""
    packed_dir: str = ""
    """Directory in which weights lie as the kernels read them, for all groups of this host, which map them
    and take their memory once; empty: each rank packs in its own memory. See docs/models.md."""
    packed_dir_gib: Annotated[float, Interval(gt=0, le=2**20)] = 50.0
    """Size of that directory in GiB: what was not used for the longest time is removed."""
    engine_start_timeout_s: UpToDay = 600.0
    """Time limit for loading the model, without waits for a core or a disk."""
    step_timeout_s: UpToHour = 30.0
    """Time limit of a step before the ranks count as hung, without waits for a core or a disk; large chunks
    of prompts get more, as measured."""

    @property
    def local_ranks(self) -> int:
        """Number of ranks on the leader's host."""
        return self.tensor_parallel - self.remote_ranks

    @property
    def collective_timeout_s(self) -> float:
        """Time limit of one collective operation of the ranks."""
        return _COLLECTIVE_SHARE * self.step_timeout_s
