"""The settings of the KV state service."""

from typing import Annotated

from annotated_types import Interval
from pydantic import Field

from shared.setting_types import (
    AnyBytes,
    From1MiB,
    SecondToTenYears,
    Share,
    UpToHalfMinute,
    UpToHundred,
    UpToMillion,
    UpToMinute,
    UpToTenMinutes,
)
from shared.settings import (
    CommonSettings,
    OptionalStoreURL,
    PinLimitSettings,
    RedisTlsSettings,
    SessionSizeSettings,
)


class KVStateSettings(CommonSettings, RedisTlsSettings, SessionSizeSettings, PinLimitSettings):
    """The variables are called `RYZ_` and the field's name."""

    redis_url: Annotated[str, Field(pattern=r"^(redis|rediss|unix)://[^\s]+$", repr=False)] = (
        "redis://127.0.0.1:6379/0"
    )
    """The session store."""
    kv_redis_url: OptionalStoreURL = ""
    """The store for KV blocks; empty: the session store."""
    session_ttl_s: SecondToTenYears = 604_800.0
    """How long a session lives after its last turn."""
    session_spare_ttl_s: SecondToTenYears = 3600.0
    """How long a spare session lives: one whose id was made for a request that named none, before its second
    turn; at most `RYZ_SESSION_TTL_S` (docs/sessions.md)."""
    session_max_per_tenant: Annotated[int, Interval(ge=1, le=100_000_000)] = 100_000
    """Sessions of a tenant; beyond it its oldest expendable ones go, then new ones are refused
    (docs/sessions.md)."""
    session_bytes_per_tenant: AnyBytes = 0
    """Bytes of a tenant's sessions in Redis, keys and indexes included; 0: 40 % of its `maxmemory`, 10 % if
    it has KV as well, and 2/(N+1) of that where N tenants have sessions; 1 GiB if it has no such limit."""
    session_pins_per_tenant: Annotated[int, Interval(ge=0, le=10_000_000)] = 1000
    """Pinned sessions of a tenant."""
    response_ttl_s: SecondToTenYears = 2_592_000.0
    """How long a response of the Responses API lives after it was stored or last continued."""
    response_max_per_tenant: Annotated[int, Interval(ge=1, le=100_000_000)] = 100_000
    """Responses of a tenant; beyond it those that were unused longest go."""
    response_bytes_per_tenant: From1MiB = 256 * 2**20
    """Bytes of a tenant's responses in Redis; beyond it those that were unused longest go."""
    kvstate_max_concurrent: Annotated[int, Interval(ge=1, le=1024)] = 32
    """Calls of each kind that run at the same time."""
    kvstate_max_pending: UpToMillion = 4096
    """Calls of each kind that may wait; more are dropped."""
    redis_timeout_s: UpToHalfMinute = 0.25
    """Time limit of one exchange with the session store, without the time that a call waits inside this
    service."""
    redis_circuit_failures: UpToHundred = 3
    """Time-outs in a row after which the store counts as unavailable."""
    redis_probe_s: UpToMinute = 0.25
    """Interval of probes to an unavailable store."""
    redis_check_s: UpToMinute = 1.0
    """Interval of checks of an available store, for /ready."""
    session_tombstone_s: Annotated[float, Interval(ge=1, le=31_536_000)] = 86_400.0
    """How long a deleted session is remembered, so that an earlier turn does not store it again."""
    kv_max_bytes: AnyBytes = 0
    """Bytes of KV blocks in Redis; 0: `RYZ_KV_REDIS_SHARE` of its `maxmemory`, or a quarter of its machine's
    memory if it has no such limit."""
    kv_redis_share: Share = 0.8
    """Share of Redis's `maxmemory` for KV blocks."""
    kv_tenant_bytes: AnyBytes = 0
    """Bytes of KV blocks of a tenant; 0: as many as fit."""
    kv_session_bytes: AnyBytes = 0
    """Bytes of KV blocks of one session; 0: as many as fit."""
    kv_ttl_s: SecondToTenYears = 604_800.0
    """How long a KV block lives after it was last committed, unless it is evicted before."""
    kv_grace_s: Annotated[float, Interval(ge=1, le=86_400)] = 900.0
    """How long a session may hold KV blocks before its first record, and how long unreported bytes live."""
    kv_pause_s: Annotated[float, Interval(ge=0, le=600)] = 1.0
    """How long leaders are asked to write nothing when the store is full."""
    kv_timeout_s: UpToHalfMinute = 0.5
    """Time limit of one exchange with the KV store; counted as `RYZ_REDIS_TIMEOUT_S`."""
    kv_sweep_s: UpToTenMinutes = 1.0
    """Interval of sweeps over KV blocks; one replica at a time does it."""
