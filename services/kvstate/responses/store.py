"""The contract of a store of responses.

`redis_responses.py` implements it. Contract tests compare it with a plain one (`tests/kits/kvstate`).
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

from annotated_types import Interval

from shared.setting_types import From1MiB

OVERHEAD = 512  # bytes of a response beside its record: keys, index, account
ID_COPIES = 3
MAX_PURGED = 256  # records that one put drops, and expired ones that it takes off the account


@dataclass(frozen=True, kw_only=True)
class ResponseQuotas:
    """What one tenant may keep. `KVStateSettings` inherits the fields, so they are also settings."""

    response_max_per_tenant: Annotated[int, Interval(ge=1, le=100_000_000)] = 100_000
    """Responses of a tenant; beyond it those that were unused longest go."""
    response_bytes_per_tenant: From1MiB = 256 * 2**20
    """Bytes of a tenant's responses in Redis; beyond it those that were unused longest go."""


@dataclass(frozen=True, slots=True)
class ResponseEntry:
    """A record on its way into a store; see `ResponsePut` and `ResponseRecord`."""

    tenant: str
    response_id: str
    record: bytes
    parent: str = ""
    ended: bool = True
    is_new: bool = True
    owner: str = ""
    lease_ms: int = 0

    @property
    def size(self) -> int:
        """The bytes that it counts for."""
        return len(self.record) + OVERHEAD + ID_COPIES * len(self.response_id) + len(self.tenant)


class PutResult(NamedTuple):
    """What became of an entry.

    Attributes:
        stored: False: the record there has ended and stays, or it was deleted.
        over_quota: It does not fit even if all other ended responses of the tenant go.
        dropped: Records that went to make room.
    """

    stored: bool
    over_quota: bool = False
    dropped: int = 0


class FoundResponse(NamedTuple):
    """A record, and whether it has not ended though the lease of its owner has run out."""

    record: bytes
    abandoned: bool


class FoundChain(NamedTuple):
    """Records, newest first. `rest`: where to go on; `missing`: the next response is not there."""

    records: list[bytes]
    rest: str = ""
    missing: str = ""


class ResponseStore(Protocol):
    """Records by tenant and id, each for a limited time since it was put or last continued.

    All methods may be called at the same time, and each is atomic. Every one raises `Unavailable` when the
    store cannot be reached, does not answer or refuses, and may then be repeated as it is.
    """

    async def put(self, entry: ResponseEntry) -> PutResult:
        """Stores an entry. An ended record stays for ever as it is; the same put again counts as stored.

        Where a quota leaves no room, the tenant's ended records that were unused longest go.

        Raises:
            StoreFull: There is no memory for it.
        """
        ...

    async def get(self, tenant: str, response_id: str) -> FoundResponse | None:
        """Returns the record, or None if there is none or it has expired."""
        ...

    async def chain(self, tenant: str, response_id: str, room: int, limit: int) -> FoundChain:
        """Returns the record and those before it, and lets all of them live as long as new ones.

        Args:
            response_id: The newest response of the chain.
            room: Bytes after which the answer ends; one record is always there.
            limit: Records in one answer.
        """
        ...

    async def lease(
        self, tenant: str, response_id: str, owner: str, lease_ms: int, *, takes_over: bool
    ) -> bool:
        """Gives a response that has not ended to an owner; False if another has it, or it has ended."""
        ...

    async def claim(self, owner: str, lease_ms: int, limit: int) -> list[tuple[str, str]]:
        """Gives responses whose leases have run out to an owner; returns tenants and ids."""
        ...

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Removes a record; returns False if there was none."""
        ...

    async def ids_of(self, tenant: str, limit: int) -> list[str]:
        """Returns up to `limit` ids of a tenant's responses, those that expire first before others."""
        ...

    async def shorten(self, tenant: str, days: int) -> int:
        """Lets a tenant's ended records live no longer than that since they were put or last continued.

        Returns how many went.
        """
        ...

    async def close(self) -> None:
        """Closes all connections. May be called twice."""
        ...
