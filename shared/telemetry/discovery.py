"""Answers `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`, so that `nats micro` and others find the services.

The form is that of NATS's services
(https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-32.md).
The endpoints of a service are its subscriptions, so none can be left out. nats-py's `nats.micro` does not
fit: it subscribes by itself, past the bounds and counters of the bus.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from shared import subjects
from shared.bus import Bus, Message, ServedSubject
from shared.bus.accounts import INBOX
from shared.bus.subject import can_answer

TYPES = {"PING": "ping", "INFO": "info", "STATS": "stats"}
MAX_PENDING = 256
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


class CountingBus(Bus, Protocol):
    """A bus that knows what it has handled."""

    @property
    def served(self) -> list[ServedSubject]:
        """What was handled on each subscription."""
        ...


@dataclass(frozen=True, slots=True)
class DiscoveredService:
    """What a service reports of itself.

    Attributes:
        name: Of the kind of service.
        version: Three numbers with dots.
        describe: Returns more facts, as texts.
        started: When it began.
    """

    name: str
    instance_id: str
    version: str
    describe: Callable[[], Mapping[str, str]]
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def answer(self, verb: str, served: list[ServedSubject]) -> dict[str, Any] | None:
        """Returns the answer to a question; None for a verb that is not known."""
        if verb not in TYPES:
            return None
        reply: dict[str, Any] = {
            "type": f"io.nats.micro.v1.{TYPES[verb]}_response",
            "name": self.name,
            "id": subjects.token(self.instance_id),
            "version": self.version,
            "metadata": dict(self.describe()),
        }
        if verb == "INFO":
            reply["description"] = f"{self.name} of Ryzanstein"
            reply["endpoints"] = [_endpoint(one) | {"metadata": {}} for one in _endpoints(served)]
        elif verb == "STATS":
            reply["started"] = self.started.isoformat(timespec="microseconds").replace("+00:00", "Z")
            reply["endpoints"] = [_stats(one) for one in _endpoints(served)]
        return reply


async def answer_discovery(buses: Sequence[CountingBus], service: DiscoveredService) -> None:
    """Answers questions on the first bus until it is closed, about the subscriptions of all."""
    bus = buses[0]

    async def answer(message: Message) -> None:
        verb, *wanted = message.subject.split(".")[1:]
        if wanted != [service.name, subjects.token(service.instance_id)][: len(wanted)]:
            return
        reply = service.answer(verb, [served for one in buses for served in one.served])
        if reply is not None and can_answer(message.reply):
            await bus.publish(message.reply, json.dumps(reply).encode())

    await bus.subscribe(subjects.SRV_ALL, answer, max_pending=MAX_PENDING)


def _endpoints(served: list[ServedSubject]) -> list[ServedSubject]:
    hidden = (INBOX, subjects.SRV_ALL)
    return sorted((one for one in served if not one.subject.startswith(hidden)), key=lambda one: one.subject)


def _endpoint(one: ServedSubject) -> dict[str, Any]:
    name = one.subject.removeprefix(f"{subjects.PREFIX}.").replace("*", "any").replace(">", "all")
    return {"name": _NOT_IN_NAMES.sub("-", name), "subject": one.subject, "queue_group": one.queue}


def _stats(one: ServedSubject) -> dict[str, Any]:
    return _endpoint(one) | {
        "num_requests": one.handled,
        "num_errors": one.failed,
        "last_error": "",
        "processing_time": one.busy_ns,
        "average_processing_time": one.busy_ns // one.handled if one.handled else 0,
    }
