"""The settings of the KV state service."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from annotated_types import Interval
from pydantic import Field

from services.kvstate.constants import KVStateConstants, constant_settings
from services.kvstate.domain.block_eviction import BlockLimits
from services.kvstate.domain.session_quota import SessionLives, TenantSessionLimits
from services.kvstate.responses.store import ResponseQuotas
from shared.session_limits import PinLimit
from shared.setting_types import SecondToTenYears, UpToHalfMinute
from shared.settings import CommonSettings, RedisSettings, SessionSizeSettings


# mypy does not see that pydantic freezes settings by their config
class KVStateSettings(  # type: ignore[misc]
    CommonSettings,
    RedisSettings,
    SessionSizeSettings,
    PinLimit,
    SessionLives,
    TenantSessionLimits,
    ResponseQuotas,
    BlockLimits,
):
    """The variables are called `RYZ_` and the field's name."""

    gone: ClassVar[Mapping[str, object]] = constant_settings()
    constants: ClassVar[KVStateConstants] = KVStateConstants()

    redis_url: Annotated[str, Field(pattern=r"^(redis|rediss|unix)://[^\s]+$", repr=False)] = (
        "redis://127.0.0.1:6379/0"
    )
    """The session store."""
    response_ttl_s: SecondToTenYears = 2_592_000.0
    """How long a response of the Responses API lives after it was stored or last continued."""
    kvstate_max_concurrent: Annotated[int, Interval(ge=1, le=1024)] = 32
    """Calls of each kind that run at the same time."""
    redis_timeout_s: UpToHalfMinute = 0.25
    """Time limit of one exchange with the session store, without the time that a call waits inside this
    service."""
    usage_days: Annotated[int, Interval(ge=1, le=3650)] = 400
    """How long sums of usage are kept; 400 days show a year beside the same month of the year before."""
    kv_ttl_s: SecondToTenYears = 604_800.0
    """How long a KV block lives after it was last committed, unless it is evicted before."""
    kv_timeout_s: UpToHalfMinute = 0.5
    """Time limit of one exchange with the KV store; counted as `RYZ_REDIS_TIMEOUT_S`."""
