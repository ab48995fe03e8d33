"""Adapters that the fleet serves beside their base models, and the calls that register and remove them.

The KV state service keeps the register. Routers read it, send `Work` with the adapter that a request means,
and prefer groups that hold it; leaders load it when the first request asks for it.
"""

from typing import Annotated, ClassVar

import msgspec

from shared.messages.base import DEFAULT_TENANT, SMALL, ModelName, Tenant, Wire

AdapterName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z", description="Callers ask for `base:name`."),
]
AdapterFingerprint = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z", description="Identifies the adapter's content.")
]
RegisterVersion = Annotated[int, msgspec.Meta(ge=0, le=2**53, description="Of the register of adapters.")]
MAX_PER_BASE, MAX_ADAPTERS = 1000, 5000
SHOWN_SOURCE = 64  # characters


class Adapter(Wire, frozen=True, kw_only=True):
    """An adapter of a model.

    Attributes:
        source: Directory (PEFT) or file (GGUF), as the hosts of the base's groups see it.
        rank: The largest of its ranks.
        num_bytes: Memory that it takes in a group, on all ranks together.
        tenant: Who registered it.
    """

    name: AdapterName
    base: ModelName
    source: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    fingerprint: AdapterFingerprint
    rank: Annotated[int, msgspec.Meta(ge=1)]
    num_bytes: Annotated[int, msgspec.Meta(ge=0)]
    tenant: Tenant = DEFAULT_TENANT
    created_s: int = 0

    @property
    def model(self) -> str:
        """What callers ask for."""
        return f"{self.base}:{self.name}"

    @property
    def source_name(self) -> str:
        """The last part of its path, which tells nothing of the hosts."""
        return self.source.rstrip("/").rpartition("/")[2][:SHOWN_SOURCE]


class ListedAdapter(Wire, frozen=True, kw_only=True):
    """An adapter as any caller may see it; fields as in `Adapter`.

    Attributes:
        source: The last part of the path, shortened to 64 characters.
    """

    name: AdapterName
    source: str
    fingerprint: AdapterFingerprint
    rank: Annotated[int, msgspec.Meta(ge=1)]
    num_bytes: Annotated[int, msgspec.Meta(ge=0)]
    created_s: int = 0


def listed(adapter: Adapter) -> ListedAdapter:
    """Returns what any caller may see of an adapter."""
    return ListedAdapter(
        name=adapter.name,
        source=adapter.source_name,
        fingerprint=adapter.fingerprint,
        rank=adapter.rank,
        num_bytes=adapter.num_bytes,
        created_s=adapter.created_s,
    )


class InspectAdapter(Wire, frozen=True, kw_only=True):
    """Asks a leader of the base to read an adapter's files, and to check that it can serve them.

    What is wrong with them is answered by an `ErrorReply` (`invalid_request`).
    """

    max_bytes: ClassVar[int] = 16_384
    model: ModelName
    source: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class AdapterInspected(Wire, frozen=True, kw_only=True):
    """Answer to `InspectAdapter`; fields as in `Adapter`."""

    fingerprint: AdapterFingerprint
    rank: Annotated[int, msgspec.Meta(ge=1)]
    num_bytes: Annotated[int, msgspec.Meta(ge=0)]


class LoadAdapterCall(Wire, frozen=True, kw_only=True):
    """Registers an adapter; a router has it inspected and puts it into the register.

    Attributes:
        replace: Whether one of this name may be there; requests that follow get the new one.
        found: What a host of the base has read. It counts where no group of the base runs, which is not woken
            then; None: the base is woken, and a leader reads the files.
    """

    max_bytes: ClassVar[int] = 16_384
    base: ModelName
    name: AdapterName
    source: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    tenant: Tenant = DEFAULT_TENANT
    replace: bool = False
    found: AdapterInspected | None = None


class UnloadAdapterCall(Wire, frozen=True, kw_only=True):
    """Removes an adapter from the register; requests that run with it end first."""

    max_bytes: ClassVar[int] = SMALL
    base: ModelName
    name: AdapterName


class AdapterManaged(Wire, frozen=True, kw_only=True):
    """Answer to `LoadAdapterCall` and `UnloadAdapterCall`: what is, or was, in the register."""

    adapter: Adapter


class AdapterPut(Wire, frozen=True, kw_only=True):
    """A router puts an adapter into the register of the KV state service.

    The same content under the same name counts as done; other content is a `conflict` unless it `replaces`.
    """

    max_bytes: ClassVar[int] = 32_768
    adapter: Adapter
    replace: bool = False


class AdapterDelete(Wire, frozen=True, kw_only=True):
    """A router removes an adapter from the register."""

    max_bytes: ClassVar[int] = SMALL
    base: ModelName
    name: AdapterName


class AdapterStored(Wire, frozen=True, kw_only=True):
    """Answer to `AdapterPut` and `AdapterDelete`.

    Attributes:
        adapter: What is in the register, or was; None: there is none to delete.
        version: Of the register.
    """

    adapter: Adapter | None = None
    version: RegisterVersion = 0


class AdapterList(Wire, frozen=True, kw_only=True):
    """Asks for a part of the register.

    Attributes:
        known: The version that the caller has; the answer to an unchanged register is empty.
        cursor: From the answer before; empty: from the beginning.
    """

    max_bytes: ClassVar[int] = SMALL
    known: RegisterVersion = 0
    cursor: Annotated[str, msgspec.Meta(max_length=256)] = ""


class AdapterPage(Wire, frozen=True, kw_only=True):
    """Answer to `AdapterList`.

    Attributes:
        version: Grows with each change of the register; 0: it was always empty. Pages of different versions
            do not belong together.
        cursor: Where the next page begins; empty: this is the last one.
    """

    adapters: list[Adapter] = []
    version: RegisterVersion = 0
    cursor: str = ""


class AdapterChanged(Wire, frozen=True, kw_only=True):
    """News of the KV state service to routers and gateways: the register has changed.

    Attributes:
        before: The version before; who has another one reads the register again.
        put: The adapter that is there now; None: the one of `base` and `name` is gone.
    """

    base: ModelName
    name: AdapterName
    before: RegisterVersion
    version: RegisterVersion
    put: Adapter | None = None
