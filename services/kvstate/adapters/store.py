"""The contract of a store of the register of adapters.

`redis_adapters.py` implements it. Contract tests compare it with a plain one (`tests/kits/kvstate`).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from shared.messages.adapters import MAX_ADAPTERS, MAX_PER_BASE

PutVerdict = Literal["put", "same", "conflict", "base_full", "full"]


@dataclass(frozen=True, slots=True)
class RegisterLimits:
    """How many adapters a base may have, and all bases together."""

    per_base: int = MAX_PER_BASE
    total: int = MAX_ADAPTERS


class RegisterEntry(NamedTuple):
    """An adapter on its way into the register.

    Attributes:
        fingerprint: Of its content.
        identity: What of it counts: the same again changes nothing.
        record: The encoded `Adapter`.
    """

    base: str
    name: str
    fingerprint: str
    identity: str
    record: bytes


class RegisterChange(NamedTuple):
    """What became of a change.

    Attributes:
        record: What is there now; where it was deleted, what was there. None: nothing was.
        before: The version before; equal to `version` if nothing has changed.
    """

    verdict: PutVerdict
    record: bytes | None
    before: int
    version: int


class RegisterPage(NamedTuple):
    """A part of the register in the order of bases and names; `cursor` is empty at the end."""

    records: list[bytes]
    version: int
    cursor: str


class AdapterStore(Protocol):
    """Adapters by base and name, with a version that each change makes larger.

    All methods may be called at the same time, and each is atomic. Every one raises `Unavailable` when the
    store cannot be reached, does not answer or refuses, and may then be repeated as it is. A version is never
    used twice, also if the store has lost its contents meanwhile.
    """

    async def put(self, entry: RegisterEntry, *, replace: bool) -> RegisterChange:
        """Stores an adapter. Without `replace` an adapter with another fingerprint stays: `conflict`."""
        ...

    async def delete(self, base: str, name: str) -> RegisterChange:
        """Removes an adapter; the verdict is `same` if there was none."""
        ...

    async def page(self, cursor: str, room: int, known: int = 0) -> RegisterPage:
        """Returns adapters from the cursor on; none if the register has the `known` version.

        Args:
            cursor: Empty: from the beginning.
            room: Bytes after which the page ends; one record is always there.
            known: A version; 0: none.
        """
        ...

    async def close(self) -> None:
        """Closes all connections. May be called twice."""
        ...
