"""The settings of a worker group's leader, and of the engine that it starts."""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from annotated_types import Interval
from pydantic import Field, ValidationInfo, field_validator

from services.worker.domain.blocks.block_names import PrefixSharing
from services.worker.domain.blocks.transfer_costs import FetchMode
from services.worker.model_files.sampling_defaults import parse_sampling
from services.worker.orchestrator.options import RankProcessOptions
from services.worker.rank_protocol.join_messages import MIN_TOKEN_LENGTH, split_address
from services.worker.rank_protocol.kv_messages import Compression
from services.worker.rank_protocol.page_policy import page_policy
from services.worker.rank_protocol.run_config import EngineRunConfig, PrecisionWish
from shared.messages.base import NOT_IN_NAMES
from shared.setting_types import (
    From1KiB,
    From1MiB,
    From64KiB,
    Share,
    UpToDay,
    UpToHalfMinute,
    UpToHour,
    UpToMillion,
    UpToMinute,
    UpToTenMinutes,
    UpToTenSeconds,
    UpToTenThousand,
    ZeroToHour,
    ZeroToMillion,
    ZeroToMinute,
    ZeroToMinuteMs,
    ZeroToTenSeconds,
)
from shared.settings import CommonSettings, OptionalStoreURL, RedisTlsSettings

ToolFormatName = Annotated[str, Field(pattern=r"^[a-z0-9_]{0,64}$")]
Part = TypeVar("Part", EngineRunConfig, RankProcessOptions)


# mypy does not see that pydantic freezes settings by their config
class WorkerSettings(CommonSettings, RedisTlsSettings, EngineRunConfig, RankProcessOptions):  # type: ignore[misc]
    """The variables are called `RYZ_` and the field's name.

    A validator sees the fields before its own; those of the last base class come first.
    """

    group: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "g0"
    """The group's name; one leader each."""
    model_name: Annotated[str, Field(pattern=rf"^[^{NOT_IN_NAMES}]{{0,128}}$")] = ""
    """The name callers ask for; empty: the directory's name."""
    tool_format: ToolFormatName = ""
    """The form in which the model calls tools, one of docs/tools.md; empty: that of its chat template."""
    sampling_defaults: Annotated[str, Field(max_length=256)] = ""
    """Sampling where a request says nothing, such as `temperature=0.2,top_p=0.9`, before what the model's
    files say; `openai`: all parameters as OpenAI's API has them, such as temperature 1. Empty: the model's
    files. See docs/models.md."""
    sampling_fallback: Annotated[str, Field(max_length=256)] = ""
    """The same where neither a request nor `RYZ_SAMPLING_DEFAULTS` nor the model's files say something; after
    it come temperature 0.6 and top_p 0.95. `ryz up` sets it from its catalogue of models."""
    claim_wait_ms: Annotated[int, Interval(ge=0, le=10_000)] = 200
    """How long a starting leader waits for an answer of another leader of its group; 0: it does not ask."""
    weight: Annotated[float, Interval(gt=0, le=1000)] = 1.0
    """The group's share of the sessions."""

    max_waiting: Annotated[int, Interval(ge=16, le=100_000)] = 512
    """Sequences that may queue; beyond it requests are refused."""
    max_running_per_tenant: Share = 1.0
    """The part of `RYZ_MAX_RUNNING` that one tenant, or one address where there are no API keys, may have
    while no other waits. Freed places go to those that wait by turns in any case. Empty: 1. `ryz up` sets 0.5
    where `RYZ_API_KEYS` names several tenants, and 0.875 without keys."""
    itl_target_ms: ZeroToMinuteMs = 100.0
    """The longest time between two tokens of a sequence that prompts of others may cause: a step has as many
    tokens of prompts as fit by measured costs, and at least a quarter of the time of its decodes; 0: any."""
    speculation: Literal["off", "lookup", "draft"] = "lookup"
    """`lookup` guesses next tokens by the text of the request and its answer, and checks several in one step
    where that saves time; `draft` also asks a draft model where the text gives none. No answer changes. See
    docs/speculation.md."""
    draft_model: str = ""
    """With `RYZ_SPECULATION=draft`: the draft model, a directory or a GGUF file with the vocabulary of the
    served model; `ryz up` takes a name of the catalogue, too."""
    draft_precision: PrecisionWish = "auto"
    """`RYZ_PRECISION` of the draft model."""
    speculation_tokens: Annotated[int, Interval(ge=1, le=32)] = 8
    """Guesses of one sequence that a step checks at most."""
    tokenize_timeout_s: UpToTenMinutes = 10.0
    """CPU time for the chat template and the tokenizer on one long prompt; also the longest wait for a
    thread."""
    grammar_timeout_s: UpToMinute = 2.0
    """CPU time for compiling the grammar of one request's answer; it waits three times as long at most."""
    grammar_cache: UpToTenThousand = 64
    """Compiled grammars that are kept for further requests; one can need some MiB."""
    grammar_bytes: From1KiB = 131_072
    """Bytes that the schema, the regular expression, the grammar or all choices of a request may have."""
    prefix_sharing: PrefixSharing = "tenant"
    """Requests that share the KV of equal prefixes: those of one tenant, all, or none."""
    restart_pause_ms: Annotated[float, Interval(ge=0, le=5000)] = 400.0
    """Pause before a failed engine is started again; it doubles with each failure in a row, up to 1.5 s, or
    stays if it is longer."""
    null_step_delay_ms: ZeroToMinuteMs = 0.0
    """Duration of a null engine's step."""
    null_context_length: Annotated[int, Interval(ge=16, le=2**24)] = 8192
    """Context of the null engine without a model directory, in tokens."""

    heartbeat_interval_ms: Annotated[int, Interval(ge=5, le=60_000)] = 25
    """Time between heartbeats; routers wait for three."""
    heartbeat_stale_s: Annotated[float, Interval(ge=0.1, le=60)] = 1.0
    """How long the leader's event loop may stand still, beyond the time in which it had no core, before
    routers are told that it hangs."""
    max_request_s: UpToDay = 600.0
    """Time limit of a request that has no deadline."""
    stream_interval_ms: Annotated[float, Interval(ge=0, le=1000)] = 8.0
    """The longest time for which the tokens of streams are gathered. A single stream gets each token at once;
    each further one adds 0.25 ms, up to this bound. 0: one piece per step."""
    retention_s: ZeroToHour = 30.0
    """How long an ended request's frames are kept for resending."""
    retention_bytes: From1MiB = 64 * 2**20
    """Bytes of frames and prompts that are kept; beyond it the tenant with the most loses its oldest."""
    outside_resend_bytes_s: Annotated[int, Interval(ge=0, le=2**40)] = 2**20
    """Bytes of frames per second that are resent to each bus user outside; 0: no limit."""
    outside_calls_s: ZeroToMillion = 500
    """Cancels per second that the group takes from all bus users outside, and as many resend requests; the
    broker drops the others. 0: no limit."""
    overload_retry_s: UpToHour = 1.0
    """The time after which a refused caller is told to try again."""

    redis_url: OptionalStoreURL = ""
    """The store for KV blocks unless `RYZ_KV_REDIS_URL` names one; both empty: there is none."""
    kv_redis_url: OptionalStoreURL = ""
    """The store for KV blocks, the same as the KV state service's."""
    kv_write: bool = True
    """Write full KV blocks to the store."""
    kv_fetch: FetchMode = "auto"
    """When stored blocks are fetched: if that is faster than computing them, always, or never."""
    kv_fetch_min_tokens: Annotated[int, Interval(ge=16, le=2**20)] = 32
    """Tokens that must be missing before the store is asked."""
    kv_fetch_timeout_s: UpToMinute = 1.0
    """How long a sequence waits for its blocks from the store."""
    kv_lookup_timeout_s: UpToTenSeconds = 0.05
    """Time limit for the KV state service's answer on what is stored."""
    kv_commit_interval_s: UpToTenSeconds = 0.1
    """Interval of reports to the KV state service on what was written."""
    kv_store_timeout_s: UpToMinute = 1.0
    """Time limit of one exchange of a rank with the store."""
    kv_store_queue_bytes: Annotated[int, Interval(ge=2**20, le=2**36)] = 128 * 2**20
    """Copies of blocks that may wait in a rank to be written; more are dropped."""
    kv_store_ttl_s: Annotated[float, Interval(ge=10, le=86_400)] = 120.0
    """How long a written block lives unless the KV state service takes charge of it."""
    kv_compression: Compression = "none"
    """`zstd` compresses stored blocks without loss, where it pays."""
    kv_host_dir: str = ""
    """The directory, in memory, where groups of one host share KV blocks, of this user alone; empty: they do
    not. `ryz up` makes one in /dev/shm, unless this is set."""
    kv_host_bytes: Annotated[int, Interval(ge=2**20, le=2**40)] = 256 * 2**20
    """Memory of the host that a group's blocks may take there; it is taken as blocks come. `ryz up` takes
    less where memory is short."""
    kv_host_lag_s: Annotated[float, Interval(ge=0, le=60)] = 2.0
    """How long blocks that are in this memory wait at most before they go to the store while steps run."""
    session_lookup_timeout_s: UpToHalfMinute = 0.5
    """How long a request waits for its session's record."""
    session_history_wait_s: ZeroToMinute = 10.0
    """How long a turn that needs its session's history asks again while neither the store nor the group that
    had the last turn answers, before it fails with 503; 0: not at all."""
    session_commit_timeout_s: UpToMinute = 2.0
    """Time limit of one write of session records."""
    session_done_wait_s: ZeroToTenSeconds = 0.1
    """How long `Done` waits for the record of a session to be stored."""
    session_max_turns: Annotated[int, Interval(ge=0, le=4096)] = 16
    """Turns of one session that may wait for the running one; more are refused."""
    session_turn_wait_s: UpToHour = 120.0
    """How long a turn waits for another one of its session."""
    session_cache_bytes: From64KiB = 64 * 2**20
    """Bytes of records kept in the leader; beyond it the tenant with the most loses its oldest."""
    session_copy_s: Annotated[float, Interval(gt=0, le=31_536_000)] = 21_600.0
    """How long a leader's copy of a session serves when the store lacks it or is away; at most a quarter of
    `RYZ_SESSION_TOMBSTONE_S`, so that no deleted session comes back."""
    session_max_pending: UpToMillion = 4096
    """Records that may wait to be stored; beyond it the tenant with the most loses its oldest."""
    session_pending_bytes: From64KiB = 64 * 2**20
    """Bytes of records that may wait to be stored; beyond it the tenant with the most loses its oldest."""

    def part(self, kind: type[Part]) -> Part:
        """The fields of an inherited group of settings, as that group."""
        return msgspec.convert(self, kind, from_attributes=True)

    @field_validator("max_running_per_tenant", mode="before")
    @classmethod
    def _whole_if_empty(cls, share: Any) -> Any:
        return 1.0 if share == "" else share  # Compose cannot leave a variable out

    @field_validator("sampling_defaults", "sampling_fallback")
    @classmethod
    def _is_sampling(cls, value: str) -> str:
        parse_sampling(value)
        return value

    @field_validator("model")
    @classmethod
    def _needs_model(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.data.get("engine") == "torch":
            raise ValueError("the torch engine needs a model directory; RYZ_ENGINE=null runs without one")
        return value

    @field_validator("draft_model")
    @classmethod
    def _needs_draft_model(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.data.get("speculation") == "draft" and info.data.get("engine") == "torch":
            raise ValueError(
                "RYZ_SPECULATION=draft needs a draft model, a directory or a GGUF file; "
                "RYZ_SPECULATION=lookup goes without one"
            )
        return value

    @field_validator("kv_cold_layers")
    @classmethod
    def _names_layers(cls, value: str) -> str:
        if not re.fullmatch(r"all|[0-9,\- ]{1,256}", value):
            raise ValueError("must be `all`, or layers such as `0-3,8`")
        return value

    @field_validator("attention")
    @classmethod
    def _is_page_policy(cls, value: str) -> str:
        page_policy(value)
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
