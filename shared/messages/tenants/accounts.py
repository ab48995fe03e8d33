"""Tenants, their API keys, prices of models, and the calls that read and change them.

The KV state service keeps the records in a stream of the broker (decision 0086). Gateways and routers hold a
copy of all of them (`shared/accounts/register.py`); each change is published. A key itself crosses no bus:
its maker sends a digest.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from shared.messages.base import DEFAULT_TENANT, SMALL, ModelName, Tenant, Wire
from shared.messages.tenants.bus_users import BusUserTerms

KeyId = Annotated[
    str,
    msgspec.Meta(pattern=r"^[a-z0-9]{12}\Z", description="Names a key; part of it, and no secret."),
]
NO_KEY_OR_ID = Annotated[
    str,
    msgspec.Meta(pattern=r"^(?:[a-z0-9]{12})?\Z", description="The key of a request; empty: it had none."),
]
Actor = Annotated[
    str, msgspec.Meta(min_length=1, max_length=128, description="Who makes the change, for the audit log.")
]
AccountsVersion = Annotated[int, msgspec.Meta(ge=0, le=2**53, description="Of all records together.")]
Limit = Annotated[int, msgspec.Meta(ge=0, le=2**53, description="0: no limit.")]
Days = Annotated[int, msgspec.Meta(ge=0, le=3650)]
# what a key may be restricted to: groups of routes that belong together, over every transport
Api = Literal[
    "chat", "completions", "responses", "messages", "embeddings", "tokens", "sessions", "files", "batches",
    "models",
]  # fmt: skip
ANY_REVISION = -1
ACCOUNTS_EMPTIED = "accounts_emptied"  # the reason while the records are lost and keys were required
ERASED_TENANTS = "erased-tenants"  # the name of the usage of tenants that were erased; no tenant may have it
MAX_TENANTS, MAX_KEYS = 10_000, 50_000
# limits of months, and records of requests that are added up late, rest on the last 35 days
MIN_RECORD_DAYS = 2  # a run of a request that is repeated later counts a second time
MIN_USAGE_DAYS = 36


class Limits(Wire, frozen=True, kw_only=True):
    """How much a tenant or a key may use. 0: no limit of its own.

    Attributes:
        running: Requests under way at the same time, over all gateways.
        money_per_day: In millionths of the currency in which prices are given.
        kv_bytes: Bytes of KV blocks in the store.
        batch_lines: Requests of batches that wait or run.
        adapters: Adapters that it may have registered.
    """

    requests_per_minute: Limit = 0
    tokens_per_minute: Limit = 0
    running: Limit = 0
    tokens_per_day: Limit = 0
    tokens_per_month: Limit = 0
    money_per_day: Limit = 0
    money_per_month: Limit = 0
    sessions: Limit = 0
    kv_bytes: Limit = 0
    batch_lines: Limit = 0
    adapters: Limit = 0


class Scopes(Wire, frozen=True, kw_only=True):
    """What a key may be used for.

    Attributes:
        models: Names of models, or of adapters as `base:name`; empty: all that its tenant may use.
        apis: Empty: all.
        admin: It manages models, tenants and keys, for all tenants.
        read_only: It may read, and not generate or change anything.
    """

    models: Annotated[list[ModelName], msgspec.Meta(max_length=256)] = []
    apis: Annotated[list[Api], msgspec.Meta(max_length=16)] = []
    admin: bool = False
    read_only: bool = False


class TenantRecord(Wire, frozen=True, kw_only=True, tag_field="type", tag="tenant"):
    """A tenant.

    Attributes:
        limits: Of all its keys together.
        weight: Its share of busy groups, against the weights of other tenants.
        models: Those that it may use; empty: all.
        time_zone: Of the IANA data base; its days and months begin there at midnight.
        suspended: Its requests are refused.
        session_days: How long its sessions are kept after their last turn; 0: as the settings say.
        response_days: How long its stored responses are kept, since they were made or last continued; 0: as
            the settings say.
        file_days: How long its files are kept; 0: until they are deleted, or for the time they came with.
        batch_days: How long its batches, and the files that these wrote, are kept after their end; 0: batches
            as the settings say, files as `file_days` 0.
        usage_days: How long its daily sums of usage are kept, at least `MIN_USAGE_DAYS`; 0: as the settings
            say, which is also the longest.
        record_days: How long the records of its single requests are kept, at least `MIN_RECORD_DAYS`; 0: as
            the ledger keeps them, which is also the longest.
    """

    tenant: Tenant
    limits: Limits = Limits()
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=100.0)] = 1.0
    models: Annotated[list[ModelName], msgspec.Meta(max_length=256)] = []
    time_zone: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = "UTC"
    suspended: bool = False
    session_days: Days = 0
    response_days: Days = 0
    file_days: Days = 0
    batch_days: Days = 0
    usage_days: Days = 0
    record_days: Days = 0
    note: Annotated[str, msgspec.Meta(max_length=256)] = ""
    created_s: int = 0

    @property
    def name(self) -> str:
        """The name of the record."""
        return f"tenant.{self.tenant}"


class KeyRecord(Wire, frozen=True, kw_only=True, tag_field="type", tag="key"):
    """An API key, or a bus user.

    Attributes:
        digest: SHA-256 of the key, which has 256 random bits; of a bus user, of the hash of its password.
        label: A name for people.
        limits: Of this key, within those of its tenant.
        expires_s: Seconds since 1970; 0: never.
        bus_user: The user of the broker that it is; None: it is a key.
    """

    key_id: KeyId
    tenant: Tenant = DEFAULT_TENANT
    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    label: Annotated[str, msgspec.Meta(max_length=64)] = ""
    scopes: Scopes = Scopes()
    limits: Limits = Limits()
    created_s: int = 0
    expires_s: Annotated[int, msgspec.Meta(ge=0)] = 0
    bus_user: BusUserTerms | None = None

    @property
    def name(self) -> str:
        """The name of the record."""
        return f"key.{self.key_id}"


class PriceRecord(Wire, frozen=True, kw_only=True, tag_field="type", tag="price"):
    """Prices of a model, in millionths of the currency for a million tokens.

    Attributes:
        cached: Of prompt tokens whose KV was not computed again.
    """

    model: ModelName
    prompt: Limit = 0
    cached: Limit = 0
    completion: Limit = 0

    @property
    def name(self) -> str:
        """The name of the record."""
        return f"price.{self.model}"


class AccountRules(Wire, frozen=True, kw_only=True, tag_field="type", tag="rules"):
    """What holds for all tenants.

    Attributes:
        keys_required: Requests without a key are refused. Set with the first key that is no admin's, and
            kept when all keys are gone.
        bus_users_listed: Bus users without a record are refused, but for `outside`. Set with the first record
            of one, and kept when all are gone.
        currency: The word beside prices.
    """

    keys_required: bool = False
    bus_users_listed: bool = False
    currency: Annotated[str, msgspec.Meta(max_length=8)] = ""

    @property
    def name(self) -> str:
        """The name of the record."""
        return "rules"


AccountRecord = TenantRecord | KeyRecord | PriceRecord | AccountRules


class StoredAccount(Wire, frozen=True, kw_only=True):
    """A record as it is kept.

    Attributes:
        revision: Version of the register in which it was last changed.
    """

    record: AccountRecord
    revision: AccountsVersion


class AccountChange(Wire, frozen=True, kw_only=True):
    """Puts or removes a record.

    Attributes:
        put: The new record; None: `remove` names one.
        remove: The `name` of a record.
        expected: The revision that the caller has read; 0: there must be none; -1: whatever is there.
        end_streams: Answers under way of a key that is not valid any more, or of a tenant that is suspended,
            end as well.
    """

    max_bytes: ClassVar[int] = 128 * 1024
    actor: Actor
    put: AccountRecord | None = None
    remove: Annotated[str, msgspec.Meta(max_length=192)] = ""
    expected: Annotated[int, msgspec.Meta(ge=ANY_REVISION, le=2**53)] = ANY_REVISION
    end_streams: bool = False


class AccountStored(Wire, frozen=True, kw_only=True):
    """Answer to `AccountChange`.

    Attributes:
        stored: What is there now; None: it was removed.
        version: Of the register, with the change.
    """

    stored: StoredAccount | None = None
    version: AccountsVersion


class AccountQuery(Wire, frozen=True, kw_only=True):
    """Asks for all records.

    Attributes:
        cursor: Where the page before ended; empty: from the beginning.
        known: A version; if it is still the one, the page is empty. 0: none.
    """

    max_bytes: ClassVar[int] = SMALL
    cursor: Annotated[str, msgspec.Meta(max_length=192)] = ""
    known: AccountsVersion = 0


class AccountPage(Wire, frozen=True, kw_only=True):
    """Answer to `AccountQuery`, by names; `cursor` is empty at the end."""

    records: list[StoredAccount] = []
    version: AccountsVersion
    cursor: str = ""


class AccountChanged(Wire, frozen=True, kw_only=True):
    """A record was changed.

    Attributes:
        before: The version before.
        put: What is there now; None: `removed` is gone.
        end_streams: As in `AccountChange`.
    """

    before: AccountsVersion
    version: AccountsVersion
    put: StoredAccount | None = None
    removed: str = ""
    end_streams: bool = False
