"""Exchanges as data: what is sent, in which order, and what is written down of the answers."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Lines = list[str]


@dataclass
class Heard:
    """The answer to one request.

    Attributes:
        lines: The answer as it is recorded, before masks.
        status: The status of HTTP, or of the reply on the bus; 0 where the transport has none.
        headers: Names in lower case.
        body: The whole body.
    """

    lines: Lines
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)

    @property
    def event_ids(self) -> list[str]:
        """Ids of the server-sent events that came."""
        lines = self.body.decode().split("\n")
        return [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]


@dataclass(frozen=True)
class Address:
    """Where a gateway and its broker are."""

    http_port: int
    grpc_port: int
    nats_url: str


class Request(Protocol):
    """A request of one transport."""

    @property
    def gateway(self) -> str:
        """The gateway that it is sent to: `main` or `tight`."""
        ...

    async def send(self, address: Address, key: str) -> Heard:
        """Sends it.

        Args:
            address: Of the gateway.
            key: The API key of the table's tenant.
        """
        ...


# a request that needs something of the answers before it, such as the id of a stream
Later = Callable[[list[Heard]], Request]


@dataclass(frozen=True)
class Exchange:
    """One or several requests whose answers are recorded together.

    Attributes:
        name: Unique in its table.
        steps: Sent one after another.
        tenant: Whose key is sent.
    """

    name: str
    steps: tuple[Request | Later, ...]
    tenant: str


@dataclass(frozen=True)
class Table:
    """Exchanges that are recorded in one file.

    Attributes:
        name: Also that of the file and of the tenant.
        exchanges: In their order, since later ones of a tenant may find what earlier ones left.
        side_by_side: Each has a tenant of its own, and they run side by side.
    """

    name: str
    exchanges: Sequence[Exchange]
    side_by_side: bool = False


def table(
    name: str,
    exchanges: Mapping[str, Request | Later | Sequence[Request | Later]],
    *,
    side_by_side: bool = False,
    own_tenants: bool = False,
) -> Table:
    """A table of exchanges by their names; with `own_tenants` each has one also if they run in order."""
    made = []
    for title, steps in exchanges.items():
        several = tuple(steps) if isinstance(steps, Sequence) else (steps,)
        own = f"{name}--{re.sub('[^A-Za-z0-9]+', '-', title)}"[:64]
        made.append(Exchange(title, several, own if side_by_side or own_tenants else name))
    return Table(name, made, side_by_side)


def key_of(tenant: str) -> str:
    """The API key of a tenant."""
    return f"key-of-{tenant}"
