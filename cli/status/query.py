"""Gathers what `ryz status` knows: the answers of all services, and the supervisor's own state."""

import asyncio
import logging
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from cli.console import CommandError, fail
from cli.groups.silent_groups import NO_ANSWER, silent_groups
from cli.stack.host.reachability import somebody_listens
from cli.stack.state import DEFAULT_DIR, StackState, StateDir, no_stack
from cli.status.gathering import Gathering
from shared import subjects
from shared.address import redact
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import decode, encode
from shared.errors import InvalidRequest, RyzError
from shared.host.local_stack import USUAL_BROKER
from shared.messages import ServiceStatus, StatusQuery
from shared.settings import BusSettings, load

LEAVING = {"draining", "stopped"}  # a leader that ends may overlap with its successor
NOBODY_S = 1.0  # a broker that is being started may listen soon
BUSY_S = 5.0


@dataclass(slots=True)
class StatusReport:
    """`problem` says why `services` is empty."""

    nats_url: str
    supervisor: StackState | None
    services: list[ServiceStatus] = field(default_factory=list)
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; `groups` and `sessions` are from the services' details."""
        return {
            "nats_url": redact(self.nats_url),
            "supervisor": self.supervisor.public() if self.supervisor else None,
            "services": [as_builtins(one) for one in self.services],
            "groups": self.groups(),
            "sessions": self.sessions(),
            "problem": self.problem or None,
        }

    def of_kind(self, service: str) -> list[ServiceStatus]:
        """Return all instances of a service."""
        return [one for one in self.services if one.service == service]

    def groups(self) -> list[dict[str, Any]]:
        """Return each group by its leader's answer, with the leader's pid and state, or a `SilentGroup`."""
        rivals = self.rivals()
        rows = [
            {
                **one.detail,
                "state": one.detail.get("state", one.state),
                "leader_pid": one.pid,
                "rivals": rivals.get(one.instance_id, []),
            }
            for one in self.of_kind("worker")
        ]
        silent = [group.as_dict() for group in silent_groups(self.services)]
        return sorted(rows + silent, key=lambda group: str(group.get("group")))

    def rivals(self) -> dict[str, list[str]]:
        """Return the other leaders that live under a leader's group name, by the leader's instance."""
        names: dict[str, list[str]] = {}
        for one in self.of_kind("worker"):
            if one.state not in LEAVING:
                names.setdefault(str(one.detail.get("group")), []).append(one.instance_id)
        return {
            one: [other for other in same if other != one]
            for same in names.values()
            if len(same) > 1
            for one in same
        }

    def sessions(self) -> int | None:
        """Return how many session records the store has; None if no service answered."""
        counts = [one.detail.get("sessions") for one in self.of_kind("kvstate")]
        return next((count for count in counts if isinstance(count, int)), None)


def as_builtins(status: ServiceStatus) -> dict[str, Any]:
    """Return a status as plain values, defaults included."""
    return {name: msgspec.to_builtins(getattr(status, name)) for name in status.__struct_fields__}


def find_broker(given: str, state_dir: StateDir) -> str:
    """Return the given broker, else that of the stack that is up here, else `RYZ_NATS_URL` or the default.

    Raises:
        CommandError: No stack is up. Nothing listens at the default address; or a directory was named, and
            the default could be another stack's broker.
    """
    if given:
        return given
    state = state_dir.read()
    if state is not None:
        return state.broker("cli")
    if named := os.environ.get("RYZ_NATS_URL"):
        return named
    if state_dir.path != StateDir(DEFAULT_DIR).path or not somebody_listens(USUAL_BROKER):
        fail(no_stack(state_dir.path, "`--nats-url` or RYZ_NATS_URL another broker"))
    return USUAL_BROKER


def no_broker(url: str) -> str:
    """Return the sentence for a broker that does not answer."""
    return (
        f"No broker answers at {redact(url)}. `ryz up` starts a stack; `--state-dir` finds one that was "
        "started with it, `--nats-url` or RYZ_NATS_URL another one."
    )


async def connect_broker(url: str, state_dir: StateDir, name: str) -> NatsBus:
    """Connect to what `find_broker` found, with TLS as `RYZ_NATS_CA` and so on say. Raises `RyzError`."""
    wait_s = BUSY_S if await asyncio.to_thread(somebody_listens, url) else NOBODY_S
    state = state_dir.read()
    if state and url in state.nats_urls.values():  # our own broker, which RYZ_NATS_CA and so on are not about
        return await NatsBus.connect(url, name=name, connect_wait_s=wait_s, local=True)
    return await NatsBus.from_settings(load(BusSettings), name=name, url=url, connect_wait_s=wait_s)


def ask_status(given: str, state_dir: StateDir) -> StatusReport:
    """Find the broker and ask, as views do that go on while a stack ends and comes back."""
    try:
        url = find_broker(given, state_dir)
    except CommandError as error:
        return StatusReport("", None, problem=str(error))
    return asyncio.run(query_status(url, state_dir))


async def query_status(nats_url: str, state_dir: StateDir) -> StatusReport:
    """Ask and wait for answers; never raises for a stack that is not there."""
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    report = StatusReport(nats_url, state_dir.read())
    try:
        bus = await connect_broker(nats_url, state_dir, "ryz status")
    except InvalidRequest as error:
        report.problem = f"{error.message[:1].upper()}{error.message[1:]}."
        return report
    except RyzError:
        report.problem = no_broker(nats_url)
        return report
    try:
        await _gather(bus, report)
    finally:
        await bus.close()
    report.services.sort(key=lambda one: (one.service, str(one.detail.get("group", "")), one.instance_id))
    if not report.services:
        report.problem = (
            f"The broker at {redact(nats_url)} is up, but no service answers. `ryz up` starts them."
        )
    return report


async def _gather(bus: NatsBus, report: StatusReport) -> None:
    async def collect(message: Message) -> None:
        if message.no_responders:
            answers.note_no_responders()
            return
        report.services.append(decode(message.data, ServiceStatus))
        answers.note_answer()

    def incomplete() -> bool:
        """Routers hear a group that has not answered, or nothing of a stack that is up has."""
        if not report.services:
            return report.supervisor is not None
        return any(group.state == NO_ANSWER for group in silent_groups(report.services))

    inbox = bus.new_inbox()
    await bus.subscribe(inbox, collect, max_pending=4096)
    answers = Gathering(incomplete)
    await bus.publish(subjects.STATUS, encode(StatusQuery()), reply=inbox)
    await answers.wait_for_answers()
