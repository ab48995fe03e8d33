"""Exchanges as data: what is sent, in which order, and what is written down of the answers."""

import json
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
        tenant: Whose key is sent; empty: that of the table.
    """

    name: str
    steps: tuple[Request | Later, ...]
    tenant: str = ""


@dataclass(frozen=True)
class Table:
    """Exchanges that run one after another, with a tenant of their own, beside those of other tables.

    Attributes:
        name: Also that of the recorded file and of the tenant.
        exchanges: In their order, since later ones may find what earlier ones left.
    """

    name: str
    exchanges: Sequence[Exchange]


def table(name: str, exchanges: Mapping[str, Request | Later | Sequence[Request | Later]]) -> Table:
    """A table of exchanges by their names."""
    made = []
    for title, steps in exchanges.items():
        several = tuple(steps) if isinstance(steps, Sequence) else (steps,)
        made.append(Exchange(title, several))
    return Table(name, made)


def key_of(tenant: str) -> str:
    """The API key of a tenant."""
    return f"key-of-{tenant}"
