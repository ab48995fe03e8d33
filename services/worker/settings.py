"""The settings of a worker group's leader, and of the engine that it starts."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval
from pydantic import Field, ValidationInfo, field_validator

from services.worker.constants import constant_settings
from services.worker.domain.scheduling.fairness.slot_share import SHARE_BESIDE_OTHERS
from services.worker.guests.remote_settings import RemoteSettings
from services.worker.guests.vllm.arguments import split_arguments
from services.worker.guests.vllm.options import VllmSettings
from services.worker.leader.intake.grammar_options import GrammarTime
from services.worker.leader.kv_tier.kv_options import KVSettings
from services.worker.leader.options import LeaderSettings
from services.worker.leader.sessions.record_limits import RecordMemory
from services.worker.model_files.sampling_defaults import parse_sampling
from services.worker.orchestrator.options import RankProcessOptions
from services.worker.rank_protocol.kv_messages import Compression
from services.worker.rank_protocol.page_policy import page_policy
from services.worker.rank_protocol.run_config import EngineRunConfig, PrecisionChoice
from services.worker.rank_protocol.starting.join_messages import MIN_TOKEN_LENGTH, split_address
from services.worker.setting_types import TENANT, ToolFormatName
from shared.messages.base import NOT_IN_NAMES
from shared.setting_types import Share, ZeroToMinuteMs
from shared.settings import CommonSettings, OptionalStoreURL, RedisSettings


# mypy does not see that pydantic freezes settings by their config
class WorkerSettings(  # type: ignore[misc]
    CommonSettings,
    RedisSettings,
    LeaderSettings,
    RecordMemory,
    GrammarTime,
    KVSettings,
    RemoteSettings,
    VllmSettings,
    EngineRunConfig,
    RankProcessOptions,
):
    """The variables are called `RYZ_` and the field's name.

    A validator sees the fields before its own; those of the last base class come first.
    """

    gone: ClassVar[Mapping[str, object]] = constant_settings()

    group: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "g0"
    """The group's name; one leader each."""
    model_name: Annotated[str, Field(pattern=rf"^[^{NOT_IN_NAMES}]{{0,128}}$")] = ""
    """The name callers ask for; empty: the directory's name."""
    model_tenants: Annotated[str, Field(pattern=rf"^({TENANT}(,{TENANT})*)?$")] = ""
    """Tenants that may use the model, separated by commas; to others it does not exist. Empty: all may."""
    tool_format: ToolFormatName = ""
    """The form in which the model calls tools, one of docs/tools.md; empty: that of its chat template."""
    sampling_defaults: Annotated[str, Field(max_length=256)] = ""
    """Sampling where a request says nothing, such as `temperature=0.2,top_p=0.9`, before what the model's
    files say; `openai`: all parameters as OpenAI's API has them, such as temperature 1. Empty: the model's
    files. See docs/models.md."""
    sampling_fallback: Annotated[str, Field(max_length=256)] = ""
    """The same where neither a request nor `RYZ_SAMPLING_DEFAULTS` nor the model's files say something; after
    it come temperature 0.6 and top_p 0.95. `ryz up` sets it from its catalogue of models."""
    max_waiting: Annotated[int, Interval(ge=16, le=100_000)] = 512
    """Sequences that may queue; beyond it requests are refused."""
    max_running_per_tenant: Share = SHARE_BESIDE_OTHERS
    """The part of `RYZ_MAX_RUNNING` that one tenant, or one address where there are no API keys, may have
    beside others, and for a minute after them; alone it may have all. Slots that become free go to parties
    by their credit in tokens in any case. Empty: 0.875."""
    itl_target_ms: ZeroToMinuteMs = 100.0
    """The longest time between two tokens of a sequence that prompts of others may cause: a step has as many
    tokens of prompts as fit by measured costs, and at least a quarter of the time of its decodes. Beside
    decodes of another tenant, or of another address where there are no API keys, prompts get at most as much
    time as these. 0: any."""
    speculation: Literal["off", "lookup", "draft"] = "lookup"
    """`lookup` guesses next tokens by the text of the request and its answer, and checks several in one step
    where that saves time; `draft` also asks a draft model where the text gives none. No answer changes. See
    docs/speculation.md."""
    draft_model: str = ""
    """With `RYZ_SPECULATION=draft`: the draft model, a directory or a GGUF file with the vocabulary of the
    served model; `ryz up` takes a name of the catalogue, too."""
    draft_precision: PrecisionChoice = "auto"
    """`RYZ_PRECISION` of the draft model."""
    null_step_delay_ms: ZeroToMinuteMs = 0.0
    """Duration of a null engine's step."""

    redis_url: OptionalStoreURL = ""
    """The store for KV blocks unless `RYZ_KV_REDIS_URL` names one; both empty: there is none."""
    kv_compression: Compression = "none"
    """`zstd` compresses stored blocks without loss, where it pays."""
    kv_host_bytes: Annotated[int, Interval(ge=2**20, le=2**40)] = 256 * 2**20
    """Memory of the host that a group's blocks may take there; it is taken as blocks come. `ryz up` takes
    less where memory is short."""

    @field_validator("max_running_per_tenant", mode="before")
    @classmethod
    def _whole_if_empty(cls, share: Any) -> Any:
        return SHARE_BESIDE_OTHERS if share == "" else share  # Compose cannot leave a variable out

    @field_validator("sampling_defaults", "sampling_fallback")
    @classmethod
    def _is_sampling(cls, value: str) -> str:
        parse_sampling(value)
        return value

    @field_validator("model")
    @classmethod
    def _needs_model(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.data.get("engine") in ("torch", "vllm"):
            raise ValueError(
                f"the {info.data['engine']} engine needs a model directory; RYZ_ENGINE=null runs without one"
            )
        if not value and info.data.get("engine") == "remote":
            raise ValueError(
                "a remote engine needs the model's tokenizer and chat template: its directory, where weights "
                "may be missing, or its GGUF file"
            )
        return value

    @field_validator("remote_url")
    @classmethod
    def _needs_server(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.data.get("engine") == "remote":
            raise ValueError("RYZ_ENGINE=remote needs the address of a server, such as http://10.0.0.5:8000")
        return value

    @field_validator("vllm_python")
    @classmethod
    def _needs_interpreter(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.data.get("engine") == "vllm":
            raise ValueError(
                "RYZ_ENGINE=vllm needs the Python interpreter of an environment with vLLM, such as "
                "/opt/vllm/bin/python"
            )
        return value

    @field_validator("vllm_args")
    @classmethod
    def _are_engine_arguments(cls, value: str) -> str:
        split_arguments(value)
        return value

    @field_validator("adapter_bytes")
    @classmethod
    def _is_within_what_ranks_may_take(cls, value: int, info: ValidationInfo) -> int:
        growth_mb = info.data.get("rank_memory_growth_mb", 0)
        if growth_mb and value > growth_mb * 2**20:
            raise ValueError(
                f"a rank that grows by more than {growth_mb} MiB is ended: raise "
                "RYZ_RANK_MEMORY_GROWTH_MB as well"
            )
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
