"""The options of the KV tier."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval

from services.worker.domain.blocks.transfer_costs import FetchMode
from shared.flow.circuit import CircuitLimits, store_limits
from shared.setting_types import UpToMinute, UpToTenSeconds


@dataclass(frozen=True, kw_only=True)
class KVSettings:
    """What operators choose. `WorkerSettings` inherits the fields, so each is also a setting `RYZ_<NAME>`."""

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
    kv_host_dir: str = ""
    """The directory, in memory, where groups of one host share KV blocks, of this user alone; empty: they do
    not. `ryz up` makes one in /dev/shm, unless this is set."""


@dataclass(frozen=True, kw_only=True)
class KVOptions(KVSettings):
    """Options of a leader's KV tier: the settings, and constants in seconds.

    Attributes:
        commit_interval_s: Between two commits of written blocks, each one message for all of them.
        commit_timeout_s: For one commit. Nothing waits for it.
        circuit: When the store is taken for away, and how often it is probed then.
    """

    commit_interval_s: float = 0.1
    commit_timeout_s: float = 2.0
    circuit: CircuitLimits = field(default_factory=store_limits)
