"""The bodies of `/v1/manage/tenants`, `keys` and `prices`, and the records that they mean."""

from typing import Annotated, Any, Literal, TypeVar

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from shared.accounts.forms import limits_of, with_prices
from shared.errors import InvalidRequest
from shared.messages import BusUserTerms, KeyRecord, Limits, PriceRecord, Scopes, TenantRecord
from shared.messages.base import DEFAULT_TENANT
from shared.messages.tenants.accounts import Api

R = TypeVar("R", TenantRecord, KeyRecord)
ROUTERS_OWN = "default"  # of a bus user's limit: that of the settings of routers
MAX_OVERLAP_S = 366 * 86_400
_NO_ID = "0" * 12
_TENANT = r"^[A-Za-z0-9_-]{1,64}$"  # pydantic's `$` is the end of the text
Count = int | None
_LIMIT = Field(default=None, ge=0, le=2**53, description="0: no limit.")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LimitsBody(_Body):
    """Limits; those that are missing stay as they are."""

    requests_per_minute: Count = _LIMIT
    tokens_per_minute: Count = _LIMIT
    running: Count = _LIMIT
    tokens_per_day: Count = _LIMIT
    tokens_per_month: Count = _LIMIT
    money_per_day: float | None = Field(default=None, ge=0, le=1e9, description="In the currency of prices.")
    money_per_month: float | None = Field(default=None, ge=0, le=1e9)
    sessions: Count = _LIMIT
    kv_bytes: Count = _LIMIT
    batch_lines: Count = _LIMIT
    adapters: Count = _LIMIT


class TenantBody(_Body):
    """What is changed of a tenant."""

    weight: float | None = Field(default=None, ge=0.01, le=100, description="Its share of busy groups.")
    models: list[str] | None = Field(default=None, max_length=256, description="Empty: all.")
    time_zone: str | None = Field(default=None, max_length=64, description="Of the IANA data base.")
    suspended: bool | None = None
    session_days: int | None = Field(default=None, ge=0, le=3650)
    response_days: int | None = Field(default=None, ge=0, le=3650)
    file_days: int | None = Field(default=None, ge=0, le=3650)
    batch_days: int | None = Field(default=None, ge=0, le=3650)
    usage_days: int | None = Field(default=None, ge=0, le=3650, description="0, or 36 and more.")
    record_days: int | None = Field(default=None, ge=0, le=3650, description="0, or 2 and more.")
    note: str | None = Field(default=None, max_length=256)
    limits: LimitsBody | None = None

    def applied_to(self, record: TenantRecord) -> TenantRecord:
        """The record with what was given."""
        return _applied(record, self.model_dump(exclude_none=True, exclude={"id"}))


class NewTenantBody(TenantBody):
    """A new tenant."""

    id: str = Field(pattern=_TENANT, description="1 to 64 letters, digits, `-` and `_`.")

    def record(self) -> TenantRecord:
        """The record."""
        return self.applied_to(TenantRecord(tenant=self.id))


class ScopesBody(_Body):
    """What a key may be used for."""

    models: list[str] | None = Field(default=None, max_length=256, description="Empty: those of its tenant.")
    apis: list[Api] | None = Field(default=None, max_length=16, description="Empty: all.")
    read_only: bool | None = None


class NewScopesBody(ScopesBody):
    """What a new key may be used for."""

    admin: bool = Field(default=False, description="It manages models, tenants and keys.")


class BusUserBody(_Body):
    """What is changed of a bus user, beside what keys have."""

    max_rps: Annotated[float, Field(ge=0, le=1e6)] | Literal["default"] | None = Field(
        default=None, description="Requests a second; 0: no limit, `default`: as the settings of routers say."
    )
    max_priority: Annotated[int, Field(ge=-10, le=10)] | Literal["default"] | None = Field(
        default=None, description="`default`: as the settings of routers say."
    )
    suspended: bool | None = None


class NewBusUserBody(BusUserBody):
    """A new bus user."""

    name: str = Field(pattern=_TENANT, description="Its name at the broker.")


class KeyBody(_Body):
    """What is changed of a key, or of a bus user."""

    label: str | None = Field(default=None, max_length=64)
    scopes: ScopesBody | None = None
    limits: LimitsBody | None = None
    expires_s: int | None = Field(default=None, ge=0, description="Seconds since 1970; 0: never.")
    bus_user: BusUserBody | None = None

    def applied_to(self, record: KeyRecord) -> KeyRecord:
        """The record with what was given."""
        given = self.model_dump(exclude_none=True)
        terms = given.pop("bus_user", None)
        if terms is not None:
            if record.bus_user is None:
                raise InvalidRequest(f"the key {record.key_id} is no bus user", param="bus_user")
            terms.pop("name", None)
            changed = {name: None if value == ROUTERS_OWN else value for name, value in terms.items()}
            given["bus_user"] = replace(record.bus_user, **changed)
        return _applied(record, given)


class NewKeyBody(KeyBody):
    """A new key."""

    tenant: str = Field(default=DEFAULT_TENANT, pattern=_TENANT)
    scopes: NewScopesBody | None = None
    bus_user: NewBusUserBody | None = Field(default=None, description="It is to be a bus user, and no key.")

    def record(self) -> KeyRecord:
        """The record, whose id and digest are still to be drawn."""
        user = None
        if self.bus_user is not None:
            user = BusUserTerms(user=self.bus_user.name, password_hash="")
        return self.applied_to(KeyRecord(key_id=_NO_ID, digest=bytes(32), bus_user=user))


class KeysRuleBody(_Body):
    """Whether requests need a key."""

    keys_required: bool


class RotateBody(_Body):
    """For how long an old key is valid beside its successor."""

    overlap_s: int | None = Field(
        default=None, ge=0, le=MAX_OVERLAP_S, description="0: it ends at once. An hour, and 0 for a bus user."
    )


class PriceBody(_Body):
    """Prices of a million tokens; those that are missing stay as they are."""

    prompt: float | None = Field(default=None, ge=0, le=1e9)
    cached: float | None = Field(default=None, ge=0, le=1e9)
    completion: float | None = Field(default=None, ge=0, le=1e9)
    currency: str | None = Field(default=None, max_length=8, description="The word beside all prices.")

    def applied_to(self, record: PriceRecord) -> PriceRecord:
        """The record with what was given."""
        return with_prices(record, self.model_dump(exclude_none=True, exclude={"currency"}))


def _applied(record: R, given: dict[str, Any]) -> R:
    limits, scopes = given.pop("limits", None), given.pop("scopes", None)
    if limits is not None:
        assert isinstance(record.limits, Limits)
        given["limits"] = limits_of(limits, record.limits)
    if scopes is not None:
        base = record.scopes if isinstance(record, KeyRecord) else Scopes()
        given["scopes"] = replace(base, **scopes)
    return replace(record, **given)
