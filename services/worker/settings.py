"""The settings of a worker group's leader, and of the engine that it starts."""

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from services.worker.domain.scheduling.transfer_costs import FetchMode
from services.worker.orchestrator.process_group_manager import RankStart
from services.worker.rank_protocol.join_messages import MIN_TOKEN_LENGTH, split_address
from services.worker.rank_protocol.kv_messages import Compression
from services.worker.rank_protocol.rank_messages import Device, Dtype, Kernels, KVCold, KVDtype, Quantize
from shared.messages.base import NOT_IN_NAMES
from shared.settings import STORE_URL, CommonSettings, RedisTlsSettings


class WorkerSettings(CommonSettings, RedisTlsSettings):
    """See the fields; the variables are called `RYZ_` and the field's name."""

    group: str = Field(
        default="g0", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The group's name; one leader each."
    )
    engine: Literal["torch", "null"] = Field(
        default="torch", description="`torch` computes a model, `null` answers without weights, to measure."
    )
    model: str = Field(
        default="",
        validate_default=True,
        description="Model directory in Hugging Face format; only the null engine goes without.",
    )
    model_name: str = Field(
        default="",
        pattern=rf"^[^{NOT_IN_NAMES}]{{0,128}}$",
        description="The name callers ask for; empty: the directory's name.",
    )
    claim_wait_ms: int = Field(
        default=200,
        ge=0,
        le=10_000,
        description="How long a starting leader waits for the word of one that has its group's name; 0: it "
        "does not ask.",
    )
    weight: float = Field(default=1.0, gt=0, le=1000, description="The group's share of the sessions.")

    max_running: int = Field(
        default=128, ge=1, le=4096, description="Sequences computed at once; a request has n of them."
    )
    max_waiting: int = Field(
        default=512,
        ge=16,
        le=100_000,
        description="Sequences that may queue; beyond it requests are refused.",
    )
    max_running_per_tenant: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="The part of RYZ_MAX_RUNNING that one tenant may have also while no other waits. Places "
        "that become free go to waiting tenants by turns in any case. Empty: 1. `ryz up` sets 0.5 where "
        "RYZ_API_KEYS names several tenants; elsewhere set it so.",
    )
    token_budget: int = Field(
        default=512,
        ge=1,
        le=131_072,
        validate_default=True,
        description="Tokens per step, decodes and prefill chunks together; at least max_running.",
    )
    step_target_ms: float = Field(
        default=100.0,
        ge=0,
        le=60_000,
        description="How long a step with parts of prompts may take while others decode; 0: any time.",
    )
    tokenize_timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=600,
        description="Time for the chat template and the tokenizer of one long prompt; beyond it fails.",
    )
    prefix_sharing: Literal["tenant", "all", "off"] = Field(
        default="tenant",
        description="Who shares the KV of equal beginnings: requests of one tenant, of all, or nobody.",
    )
    kv_cache_tokens: int = Field(
        default=65_536,
        ge=0,
        le=2**31,
        description="Size of the KV cache in tokens; 0: a share of the memory that is free (torch).",
    )
    kv_memory_share: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="That share, when kv_cache_tokens is 0; `ryz up` divides it by its groups.",
    )

    tensor_parallel: int = Field(default=1, ge=1, le=64, description="Ranks that compute the model together.")
    threads: int = Field(default=0, ge=0, le=1024, description="Threads of each rank; 0: cores / ranks.")
    device: Device = Field(
        default="cpu", description="Where ranks compute; with `cuda`, rank r takes GPU r. See docs/gpu.md."
    )
    dtype: Dtype = Field(
        default="auto",
        description="What a GPU computes in, weights and KV cache included; `auto`: bf16.",
    )
    collectives: Literal["auto", "shm", "gloo", "nccl"] = Field(
        default="auto",
        description="How ranks exchange tensors: shared memory on one host, Gloo, or between GPUs NCCL.",
    )
    gloo_interface: str = Field(
        default="",
        description="Network interface for Gloo; empty: loopback, or the one that reaches the other hosts.",
    )
    rank_token: str = Field(
        default="", repr=False, description="The secret that ranks of other hosts prove to hold."
    )
    rank_listen: str = Field(default="", description="`host:port` where those ranks join.")
    remote_ranks: int = Field(
        default=0,
        ge=0,
        le=63,
        validate_default=True,
        description="How many of the ranks are started by hand on other hosts; see docs/two-hosts.md.",
    )
    quantize: Quantize = Field(
        default="none", description="`int8` stores the linear layers' weights in 8 bits, scaled per output."
    )
    kernels: Kernels = Field(
        default="auto", description="What ranks compute with: compiled kernels, or plain torch operations."
    )
    kv_dtype: KVDtype = Field(
        default="auto",
        description="What the KV cache holds; `auto`: fp16 beside int8 weights, fp32 beside all others.",
    )
    kv_cold: KVCold = Field(
        default="none",
        description="`fp8` compresses what lies behind the hot zone of the KV cache, with a small loss.",
    )
    kv_hot_tokens: int = Field(
        default=16,
        ge=0,
        le=4096,
        description="With `fp8`: how many tokens before its own block a token sees in full precision; whole "
        "blocks of 16 count.",
    )
    kv_cold_layers: str = Field(
        default="all",
        pattern=r"^(all|[0-9,\- ]{1,256})$",
        description="With `fp8`: in which layers, such as `0-3,8`; the others stay in full precision.",
    )
    rank_start: RankStart = Field(
        default="auto",
        description="`fork` takes ranks from one process that has torch loaded, `spawn` starts each on its "
        "own; `auto` forks on Linux.",
    )
    rank_nice: int = Field(
        default=10,
        ge=0,
        le=19,
        description="How far ranks give way when cores are short to the processes that pass requests and "
        "tokens on, as in `nice`; 0: not at all.",
    )
    engine_start_timeout_s: float = Field(
        default=600.0, gt=0, le=86_400, description="How long loading the model may take."
    )
    step_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="How long a step may take before the ranks count as hung; large chunks of prompts get "
        "more, at the pace that they show.",
    )
    stall_timeout_s: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        description="How long ranks may make no progress at all in a step before they count as hung; 0: only "
        "RYZ_STEP_TIMEOUT_S counts, as it does with ranks of other hosts. GPUs get at least 10 s.",
    )
    rank_memory_growth_mb: int = Field(
        default=4096,
        ge=0,
        le=2**24,
        description="MiB that a rank may take beyond its weights and its cache; 0: no limit.",
    )
    restart_pause_ms: float = Field(
        default=400.0,
        ge=0,
        le=5000,
        description="How long a group whose engine failed waits before it starts it again; it doubles with "
        "each failure in a row, up to 1.5 s, or stays if it is longer.",
    )
    null_step_delay_ms: float = Field(
        default=0.0, ge=0, le=60_000, description="Time of a null engine's step."
    )
    null_context_length: int = Field(
        default=8192, ge=16, le=2**24, description="Context of the null engine without a model directory."
    )

    heartbeat_interval_ms: int = Field(
        default=25, ge=5, le=60_000, description="Time between heartbeats; routers wait for three."
    )
    heartbeat_stale_s: float = Field(
        default=1.0,
        ge=0.1,
        le=60,
        description="How long the leader's event loop may hang before its heartbeats stop, so that routers "
        "take the group for dead.",
    )
    max_request_s: float = Field(
        default=600.0, gt=0, le=86_400, description="The longest a request may take that has no deadline."
    )
    stream_interval_ms: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="The least time between two pieces of a stream, but for its first and last; 0: a piece "
        "for each step. More of it leaves more of the cores to the ranks.",
    )
    retention_s: float = Field(
        default=30.0, ge=0, le=3600, description="How long an ended request's frames are kept for resending."
    )
    retention_bytes: int = Field(
        default=64 * 2**20,
        ge=2**20,
        le=2**40,
        description="At most so many bytes of frames and prompts are kept; beyond it the tenant that has "
        "most loses what ended first.",
    )
    outside_resend_bytes_s: int = Field(
        default=2**20,
        ge=0,
        le=2**40,
        description="Bytes of frames a second that are sent again to each bus user outside; 0: no limit.",
    )
    outside_calls_s: int = Field(
        default=500,
        ge=0,
        le=1_000_000,
        description="Cancels a second that the group takes from all bus users outside, and so many questions "
        "for lost frames; the broker drops the others. 0: no limit.",
    )
    overload_retry_s: float = Field(
        default=1.0, gt=0, le=3600, description="When a refused caller is told to try again."
    )

    redis_url: str = Field(
        default="",
        pattern=STORE_URL,
        repr=False,
        description="The store for KV blocks unless `RYZ_KV_REDIS_URL` names one; both empty: there is none.",
    )
    kv_redis_url: str = Field(
        default="",
        pattern=STORE_URL,
        repr=False,
        description="The store for KV blocks, the one that the KV state service uses for them.",
    )
    kv_write: bool = Field(default=True, description="Whether full KV blocks are written to the store.")
    kv_fetch: FetchMode = Field(
        default="auto",
        description="Whether stored blocks are fetched: when that is faster than computing them, or by rule.",
    )
    kv_fetch_min_tokens: int = Field(
        default=32, ge=16, le=2**20, description="Tokens that must be missing before the store is asked."
    )
    kv_fetch_timeout_s: float = Field(
        default=1.0, gt=0, le=60, description="How long a sequence waits for its blocks from the store."
    )
    kv_lookup_timeout_s: float = Field(
        default=0.05, gt=0, le=10, description="How long the KV state service may take to say what is stored."
    )
    kv_commit_interval_s: float = Field(
        default=0.1, gt=0, le=10, description="How often the KV state service is told what was written."
    )
    kv_store_timeout_s: float = Field(
        default=1.0, gt=0, le=60, description="How long one exchange of a rank with the store may take."
    )
    kv_store_queue_bytes: int = Field(
        default=128 * 2**20,
        ge=2**20,
        le=2**36,
        description="Copies of blocks that may wait in a rank to be written; more are dropped.",
    )
    kv_store_ttl_s: float = Field(
        default=120.0,
        ge=10,
        le=86_400,
        description="How long a written block lives unless the KV state service takes charge of it.",
    )
    kv_compression: Compression = Field(
        default="none", description="`zstd` compresses stored blocks without loss, where it pays."
    )
    session_lookup_timeout_s: float = Field(
        default=0.5, gt=0, le=30, description="How long a request waits for its session's record."
    )
    session_commit_timeout_s: float = Field(
        default=2.0, gt=0, le=60, description="How long one write of session records may take."
    )
    session_done_wait_s: float = Field(
        default=0.1,
        ge=0,
        le=10,
        description="How long `Done` waits for the record of a session to be stored.",
    )
    session_max_turns: int = Field(
        default=16,
        ge=0,
        le=4096,
        description="Turns of one session that may wait for the one that runs; more are refused.",
    )
    session_turn_wait_s: float = Field(
        default=120.0, gt=0, le=3600, description="How long a turn waits for another one of its session."
    )
    session_cache_bytes: int = Field(
        default=64 * 2**20,
        ge=2**16,
        le=2**40,
        description="Records kept in the leader; above it the oldest of the tenant that has most go.",
    )
    session_copy_s: float = Field(
        default=21_600.0,
        gt=0,
        le=31_536_000,
        description="How long a session goes on from what a leader knows of it when the store does not have "
        "it or is away; at most a quarter of `RYZ_SESSION_TOMBSTONE_S`, so that no deleted one comes back.",
    )
    session_max_pending: int = Field(
        default=4096,
        ge=1,
        le=1_000_000,
        description="Records that may wait to be stored; above it the oldest of the tenant that has most go.",
    )
    session_pending_bytes: int = Field(
        default=64 * 2**20,
        ge=2**16,
        le=2**40,
        description="Bytes of records that may wait to be stored; above it the oldest of the tenant that has "
        "most go.",
    )

    @field_validator("max_running_per_tenant", mode="before")
    @classmethod
    def _whole_if_empty(cls, share: Any) -> Any:
        return 1.0 if share == "" else share  # Compose cannot leave a variable out

    @field_validator("model")
    @classmethod
    def _needs_model(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.data.get("engine") == "torch":
            raise ValueError("the torch engine needs a model directory; RYZ_ENGINE=null runs without one")
        return value

    @field_validator("collectives")
    @classmethod
    def _fits_the_device(cls, value: str, info: ValidationInfo) -> str:
        device = info.data.get("device", "cpu")
        if value != "auto" and (value == "nccl") != (device == "cuda"):
            raise ValueError(f"does not go with RYZ_DEVICE={device}; RYZ_COLLECTIVES=auto takes what does")
        return value

    @field_validator("token_budget")
    @classmethod
    def _covers_running(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("max_running", 0):
            raise ValueError(f"must be at least RYZ_MAX_RUNNING, {info.data['max_running']}")
        return value

    @field_validator("remote_ranks")
    @classmethod
    def _leaves_a_rank_here(cls, value: int, info: ValidationInfo) -> int:
        if value and value >= info.data.get("tensor_parallel", 1):
            raise ValueError("must be less than RYZ_TENSOR_PARALLEL: rank 0 is on the leader's host")
        if value and info.data.get("collectives") == "shm":
            raise ValueError("ranks of other hosts need RYZ_COLLECTIVES=gloo or auto")
        if value and len(info.data.get("rank_token", "")) < MIN_TOKEN_LENGTH:
            raise ValueError(f"needs a secret of at least {MIN_TOKEN_LENGTH} characters in RYZ_RANK_TOKEN")
        if value:
            _check_address(info.data.get("rank_listen", ""))
        return value


def _check_address(address: str) -> None:
    try:
        split_address(address)
    except ValueError as error:
        raise ValueError(f"needs RYZ_RANK_LISTEN: {error}") from None
