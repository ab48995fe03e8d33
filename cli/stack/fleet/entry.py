"""What is said of one model that a stack serves: the schema of a models file, and of the options of `ryz up`.

Most fields are settings of the worker and have their types; `group_plan.py` maps them. What a field leaves
open is chosen for model and machine.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Interval
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cli.stack.fleet.adapter_entry import AdapterEntry
from services.worker.guests.remote.options import RemoteOptions, check_options
from services.worker.model_files.sampling_defaults import parse_sampling
from services.worker.rank_protocol.run_config import KVTokens, PrecisionChoice, Ranks, Threads
from services.worker.setting_types import TenantName, ToolFormatName
from shared.errors import InvalidRequest
from shared.messages.base import NAME_PATTERN, NAME_RULE


def _check_name(name: str) -> str:
    if not re.match(NAME_PATTERN, name):
        raise ValueError(f"{name[:64]!r} is no name: it needs {NAME_RULE}")
    return name


def _check_alias(alias: str) -> str:
    if any(letter in alias for letter in ",="):  # they part the entries of `RYZ_MODEL_ALIASES`
        raise ValueError(f"{alias[:64]!r} is no alias: it has a comma or an equals sign")
    return alias


def _check_remote(url: str) -> str:
    try:
        check_options(RemoteOptions(url=url, model="any"))
    except InvalidRequest as error:
        raise ValueError(error.message) from None
    return url


def _sampling_text(value: Any) -> Any:
    """A table of parameters in the form of the setting."""
    if not isinstance(value, Mapping):
        return value
    return ",".join(f"{name}={number}" for name, number in value.items())


def _check_sampling(text: str) -> str:
    parse_sampling(text)
    return text


_OF_REMOTE = ("remote_model", "key_file")
_OF_OWN = (
    "adapters", "draft_model", "load", "pinned", "sleep_after_s", "min_groups", "tensor_parallel", "threads",
    "cores", "precision", "kv_cache_tokens", "kv_cache_min_tokens",
)  # fmt: skip
Name = Annotated[str, AfterValidator(_check_name)]
Alias = Annotated[Name, AfterValidator(_check_alias)]
Source = Annotated[str, StringConstraints(min_length=1)]


class ModelEntry(BaseModel):
    """One model. First as it was declared, where 0, None and empty leave it open, then settled."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    source: Source
    """A name of the catalogue, hf:OWNER/NAME, a Hugging Face directory or a GGUF file, as for `--model`."""
    remote: Annotated[str, AfterValidator(_check_remote)] = ""
    """Address of an OpenAI-compatible server that computes it, such as `http://10.0.0.5:8000`; see
    docs/guests.md. Then `source` only gives tokenizer and chat template; weights may be missing there."""
    remote_model: Annotated[str, StringConstraints(max_length=256)] = ""
    """Its name at that server. Left out: `name`."""
    key_file: Annotated[str, StringConstraints(max_length=4096)] = ""
    """File with the server's API key; a relative path begins at the models file."""
    name: Name = ""
    """The name clients use. Left out: the directory's name, or the file's without its ending."""
    aliases: Annotated[tuple[Alias, ...], Field(strict=False)] = ()
    """Other names by which clients reach it; one with `*` is a pattern, for names that no group serves."""
    adapters: Annotated[tuple[AdapterEntry, ...], Field(strict=False)] = ()
    """Adapters (LoRA) of it that the fleet knows from the start, such as
    `[{ name = "fr", source = "adapters/fr" }]`."""
    tenants: Annotated[tuple[TenantName, ...], Field(strict=False)] = ()
    """Tenants that may use it; to others it does not exist. Left out: all may."""
    draft_model: str = ""
    """A small model of the same vocabulary, which guesses tokens for this one to check; as `source`."""
    tool_format: ToolFormatName = ""
    """The form in which it calls tools. Left out: that of its chat template."""
    sampling: Annotated[str, BeforeValidator(_sampling_text), AfterValidator(_check_sampling)] = ""
    """Sampling where a request says nothing: a table, or the text of `RYZ_SAMPLING_DEFAULTS`."""
    load: Literal["start", "demand"] = "start"
    """`start`: with the stack. `demand`: when a request for it comes, which waits until then."""
    pinned: bool = False
    """Once it is loaded it stays: it is neither evicted for others nor put to sleep."""
    sleep_after_s: Annotated[float, Interval(ge=1, le=604_800)] = 0.0
    """Its groups end after so many seconds without a request; the next one loads it again. Left out: they
    end only when another model needs their memory."""
    priority: Annotated[int, Interval(ge=-10, le=10)] = 0
    """Of models that want the same memory, the one with the higher priority gets it first."""
    groups: Annotated[int, Interval(ge=1, le=64)] = 0
    """Worker groups; each holds the whole model. Left out: two if they fit; one where models are loaded on
    demand."""
    min_groups: Annotated[int, Interval(ge=1, le=64)] = 0
    """As many of `groups` run at any time: they are loaded with the stack, and are neither put to sleep nor
    evicted for others. Left out: all of a pinned model that is loaded with the stack, else none."""
    tensor_parallel: Ranks = 0
    """Ranks that share one group's model. Left out: one."""
    threads: Threads = 0
    """Threads of each rank; 0 or left out: the cores shared by the ranks of all models."""
    cores: Annotated[int, Interval(ge=1, le=1024)] = 0
    """Cores that each of its groups has for itself: nothing else of the stack runs there. Left out: none; all
    processes share the cores."""
    precision: PrecisionChoice = "auto"
    """Of weights, as `--precision`."""
    kv_cache_tokens: KVTokens | None = None
    """KV cache of a group, in tokens; 0: a share of the free memory. Left out: what fits, at most 65,536."""
    kv_cache_min_tokens: Annotated[int, Interval(ge=1, le=2**31)] = 0
    """Where models are loaded on demand: the KV cache of a group shrinks to so many tokens before a model is
    evicted. Left out: to those of the longest request."""

    @field_validator("aliases", "tenants")
    @classmethod
    def _are_different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is there twice")
        return names

    @field_validator("tenants")
    @classmethod
    def _are_some(cls, tenants: tuple[str, ...]) -> tuple[str, ...]:
        if not tenants:
            raise ValueError("an empty list lets no tenant use the model: leave it out, and all may")
        return tenants

    @field_validator("min_groups")
    @classmethod
    def _are_no_more_than_all(cls, least: int, info: ValidationInfo) -> int:
        if (most := info.data.get("groups")) and least > most:
            raise ValueError(
                f"{least} are more than the {most} of `groups`: make it smaller, or `groups` larger"
            )
        return least

    @field_validator("adapters")
    @classmethod
    def _have_different_names(cls, adapters: tuple[AdapterEntry, ...]) -> tuple[AdapterEntry, ...]:
        names = [adapter.name for adapter in adapters]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the name {name!r} is there twice: change one")
        return adapters

    @field_validator("kv_cache_min_tokens")
    @classmethod
    def _is_no_more_than_all(cls, tokens: int, info: ValidationInfo) -> int:
        if (most := info.data.get("kv_cache_tokens")) and tokens > most:
            raise ValueError("it is more than `kv_cache_tokens`: make it smaller")
        return tokens

    @model_validator(mode="after")
    def _is_pinned_or_sleeps(self) -> Self:
        if self.pinned and self.sleep_after_s:
            raise ValueError("`pinned` and `sleep_after_s` contradict each other: leave out one of the two")
        return self

    @model_validator(mode="after")
    def _is_computed_in_one_place(self) -> Self:
        if not self.remote and (name := next((one for one in _OF_REMOTE if getattr(self, one)), "")):
            raise ValueError(f"`{name}` is of a server that computes the model: name it in `remote`")
        unset = type(self).model_fields
        for name in _OF_OWN if self.remote else ():
            if getattr(self, name) != unset[name].default:
                raise ValueError(
                    f"`{name}` is for models that are computed here, and `remote` is not: leave it out"
                )
        return self

    @property
    def comes_and_goes(self) -> bool:
        """Whether its groups are started or ended while the stack runs."""
        return self.load == "demand" or self.sleep_after_s > 0 or self.min_groups > 0

    @property
    def loads_at_start(self) -> bool:
        """Whether any of its groups are started with the stack."""
        return self.load == "start" or self.min_groups > 0

    @property
    def groups_at_start(self) -> int:
        """How many groups are started with the stack, once `groups` is settled."""
        return self.min_groups or (self.groups if self.load == "start" else 0)

    def with_values(self, **values: Any) -> "ModelEntry":
        """Return it with other values, which are not checked."""
        return self.model_copy(update=values)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model that was found.

    Attributes:
        entry: With its name; `machine.py` settles what it leaves open.
        path: Directory or GGUF file; None with a null engine that has none.
        draft: The same of its draft model.
        number: The position of its entry in what was declared.
        chats: Whether it has a chat template; without one it only completes texts.
    """

    entry: ModelEntry
    path: Path | None
    draft: Path | None = None
    number: int = 0
    chats: bool = True

    @property
    def name(self) -> str:
        """The name clients use."""
        return self.entry.name

    def with_values(self, **values: Any) -> "FoundModel":
        """Return it with other values in its entry."""
        return replace(self, entry=self.entry.with_values(**values))
