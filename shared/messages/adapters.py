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
    """

    max_bytes: ClassVar[int] = 16_384
    base: ModelName
    name: AdapterName
    source: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    tenant: Tenant = DEFAULT_TENANT
    replace: bool = False


class UnloadAdapterCall(Wire, frozen=True, kw_only=True):
    """Removes an adapter from the register; requests that run with it end first."""

    max_bytes: ClassVar[int] = SMALL
    base: ModelName
    name: AdapterName


class AdapterManaged(Wire, frozen=True, kw_only=True):
    """Answer to `LoadAdapterCall` and `UnloadAdapterCall`: what is, or was, in the register."""

    adapter: Adapter
