"""The settings of the KV state service."""

from pydantic import Field

from shared.settings import STORE_URL, CommonSettings, RedisTlsSettings, SessionSizeSettings


class KVStateSettings(CommonSettings, RedisTlsSettings, SessionSizeSettings):
    """See the fields; the variables are called `RYZ_` and the field's name."""

    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0",
        pattern=r"^(redis|rediss|unix)://[^\s]+$",
        repr=False,
        description="The session store.",
    )
    kv_redis_url: str = Field(
        default="",
        pattern=STORE_URL,
        repr=False,
        description="The store for KV blocks; empty: the session store.",
    )
    session_ttl_s: float = Field(
        default=604_800.0,
        ge=1,
        le=315_360_000,
        description="Seconds that a session lives after its last turn.",
    )
    session_max_per_tenant: int = Field(
        default=100_000,
        ge=1,
        le=100_000_000,
        description="Sessions that a tenant may have; beyond that its oldest spare ones go, then new ones "
        "are refused (docs/sessions.md).",
    )
    session_bytes_per_tenant: int = Field(
        default=0,
        ge=0,
        description="Bytes that a tenant's sessions may take in Redis, keys and indexes included; 0: 40 % of "
        "its `maxmemory`, 10 % if it has KV as well, and 2/(N+1) of that where N tenants have sessions; "
        "1 GiB if it has no such limit.",
    )
    session_pins_per_tenant: int = Field(
        default=1000, ge=0, le=10_000_000, description="Sessions that a tenant may have pinned."
    )
    router_pins_max: int = Field(
        default=65_536,
        ge=1,
        le=10_000_000,
        description="Pinned sessions of all tenants: a router keeps so many in mind, and more are refused. "
        "The same for routers and the KV state service.",
    )
    kvstate_max_concurrent: int = Field(
        default=32, ge=1, le=1024, description="Calls of each kind that run at the same time."
    )
    kvstate_max_pending: int = Field(
        default=4096, ge=1, le=1_000_000, description="Calls of each kind that may wait; more are dropped."
    )
    redis_timeout_s: float = Field(
        default=0.25,
        gt=0,
        le=30,
        description="How long the session store may take for one exchange; time in which this service was "
        "busy, or the call waited in it, does not count.",
    )
    redis_circuit_failures: int = Field(
        default=3, ge=1, le=100, description="Time-outs in a row after which the store is taken for away."
    )
    redis_probe_s: float = Field(
        default=0.25, gt=0, le=60, description="How often a store that is away is asked again."
    )
    redis_check_s: float = Field(
        default=1.0, gt=0, le=60, description="How often a store that answers is checked, for /ready."
    )
    session_tombstone_s: float = Field(
        default=86_400.0,
        ge=1,
        le=31_536_000,
        description="Seconds for which a deleted session is remembered, so that a turn of before does not "
        "store it again.",
    )
    kv_max_bytes: int = Field(
        default=0,
        ge=0,
        description="Bytes that KV blocks may take in Redis; 0: a share of its `maxmemory` "
        "(`RYZ_KV_REDIS_SHARE`), or a quarter of its machine's memory if it has no such limit.",
    )
    kv_redis_share: float = Field(
        default=0.8, gt=0, le=1, description="Share of Redis's `maxmemory` that KV blocks may take."
    )
    kv_tenant_bytes: int = Field(
        default=0, ge=0, description="Bytes of KV blocks that a tenant may have; 0: as many as fit."
    )
    kv_session_bytes: int = Field(
        default=0, ge=0, description="Bytes of KV blocks that one session may have; 0: as many as fit."
    )
    kv_ttl_s: float = Field(
        default=604_800.0,
        ge=1,
        le=315_360_000,
        description="Seconds that a KV block lives after it was last committed, if it is not evicted before.",
    )
    kv_grace_s: float = Field(
        default=900.0,
        ge=1,
        le=86_400,
        description="Seconds that a session may hold KV blocks before its first record, and that bytes live "
        "of which nobody told.",
    )
    kv_pause_s: float = Field(
        default=1.0, ge=0, le=600, description="How long leaders are asked to write nothing when all is full."
    )
    kv_timeout_s: float = Field(
        default=0.5,
        gt=0,
        le=30,
        description="How long the KV store may take for one exchange; counted as `RYZ_REDIS_TIMEOUT_S`.",
    )
    kv_sweep_s: float = Field(
        default=1.0, gt=0, le=600, description="How often KV blocks are swept; one replica at a time does it."
    )
