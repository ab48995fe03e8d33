"""Asks over the bus for the groups that there are, and one of them to drain.

A leader is known by its instance id, because its successor has the same group's name.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from cli.console import fail
from cli.groups.silent_groups import ENDED_WELL, SilentGroup, silent_groups
from cli.stack.state import StateDir
from cli.status.query import StatusReport, connect_broker, find_broker, query_status
from shared import subjects
from shared.bus.api import NoResponders
from shared.bus.endpoint import call
from shared.errors import RyzError
from shared.messages import DrainGroup, Draining

NO_SUCH_GROUP = 3
DRAINS_ALREADY = 4
POLL_S = 0.2
ANSWER_S = 5.0
MISSES = 3  # questions without an answer after which a leader is taken to have ended
GRACE_S = 30.0  # for KV and records to be written, and the process to end, after the requests' time


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group by its leader's answer.

    Attributes:
        running: Choices that decode.
        waiting: Choices that are queued.
        rivals: Other leaders that live under the same name; requests go to one of them.
    """

    group: str
    instance_id: str
    state: str
    model: str
    ranks: int
    running: int
    waiting: int
    requests: int
    up_s: float
    degraded: list[str]
    rivals: list[str]

    @property
    def troubles(self) -> list[str]:
        """Its faults, in words."""
        rivals = [f"{other} has this name too" for other in self.rivals]
        return rivals + [f"no {part}" for part in self.degraded]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def group_rows(report: StatusReport) -> list[GroupRow]:
    """Return all groups of a report, by name."""
    return sorted(_rows(report), key=lambda row: (row.group, row.instance_id))


def _rows(report: StatusReport) -> Iterator[GroupRow]:
    rivals = report.rivals()
    for one in report.of_kind("worker"):
        detail = one.detail
        yield GroupRow(
            group=str(detail.get("group", "?")),
            instance_id=one.instance_id,
            state=str(detail.get("state", one.state)),
            model=str(detail.get("model", "")),
            ranks=len(detail.get("ranks", ())),
            running=int(detail.get("running", 0)),
            waiting=int(detail.get("waiting", 0)),
            requests=int(detail.get("requests", 0)),
            up_s=one.uptime_s,
            degraded=[str(part) for part in detail.get("degraded", ())],
            rivals=rivals.get(one.instance_id, []),
        )


def count(requests: int) -> str:
    """Return a number of requests in words."""
    return f"{requests} request{'' if requests == 1 else 's'}"


class Groups:
    """The groups that one broker reaches. Methods raise `CommandError` with a sentence for a person."""

    def __init__(self, nats_url: str, state_dir: StateDir) -> None:
        self._url = find_broker(nats_url, state_dir)
        self._state_dir = state_dir

    async def all(self) -> list[GroupRow | SilentGroup]:
        """Return all groups, by name: those that answer, and those that routers know of."""
        report = await query_status(self._url, self._state_dir)
        if not report.services:
            fail(report.problem)
        found: list[GroupRow | SilentGroup] = [*group_rows(report), *silent_groups(report.services)]
        return sorted(found, key=lambda row: row.group)

    async def drain(self, group: str, timeout_s: float) -> Draining:
        """Ask a group to drain; 0: with its own time-out."""
        known = await self.all()
        there = [row for row in known if row.group == group and isinstance(row, GroupRow)]
        if not there:
            self._not_there(group, known)
        if all(row.state == "draining" for row in there):
            left = sum(row.requests for row in there)
            fail(f"{group} drains already, with {count(left)} in hand.", DRAINS_ALREADY)
        asked = DrainGroup(timeout_ms=round(1000 * timeout_s))
        try:
            bus = await connect_broker(self._url, self._state_dir, "ryz groups")
            try:
                return await call(bus, subjects.drain(group), asked, Draining, timeout_s=ANSWER_S)
            finally:
                await bus.close()
        except NoResponders:
            self._not_there(group, known)
        except RyzError as error:
            fail(f"{group} was not asked to drain, or did not answer: {error.message}.")

    async def wait_gone(self, drain: Draining, progress: Callable[[int], None]) -> float:
        """Return when that leader has ended, and the seconds it took; calls `progress` with what is left."""
        began, misses = time.monotonic(), 0
        limit_s = drain.timeout_ms / 1000 + GRACE_S
        while misses < MISSES:
            left = await self._requests_left(drain)
            if left is None:
                misses += 1
            else:
                misses = 0
                progress(left)
            if time.monotonic() - began > limit_s:
                fail(f"{drain.group} has not ended within {limit_s:.0f} s; `ryz status` shows what it does.")
            await asyncio.sleep(POLL_S)
        return time.monotonic() - began

    async def wait_ready(self, drain: Draining, timeout_s: float) -> GroupRow:
        """Return when another leader of that group is ready."""
        deadline = time.monotonic() + timeout_s
        while True:
            for row in group_rows(await query_status(self._url, self._state_dir)):
                new = row.group == drain.group and row.instance_id != drain.instance_id
                if new and row.state == "ready":
                    return row
            if time.monotonic() > deadline:
                fail(
                    f"{drain.group} has ended, and was not ready again within {timeout_s:g} s. `ryz up` and "
                    "compose start it again by themselves; its log says what keeps it."
                )
            await asyncio.sleep(POLL_S)

    async def _requests_left(self, drain: Draining) -> int | None:
        """Return how many requests a leader has; None if it does not answer, or has a successor."""
        found = {row.instance_id: row for row in group_rows(await query_status(self._url, self._state_dir))}
        row = found.get(drain.instance_id)
        return row.requests if row is not None else None

    @staticmethod
    def _not_there(group: str, known: list[GroupRow | SilentGroup]) -> NoReturn:
        for row in known:
            if row.group == group and isinstance(row, SilentGroup):
                if row.state in ENDED_WELL:
                    fail(f"{group} has stopped already: it {row.story}.", NO_SUCH_GROUP)
                fail(
                    f"{group} cannot drain: its leader does not answer ({row.state}: {row.story}). "
                    "Its requests go on in other groups. `ryz up` and compose start a dead leader again by "
                    "themselves; its log says why it ended."
                )
        names = ", ".join(f"{row.group} ({row.state})" for row in known) or "none"
        fail(f"There is no group {group!r} here. Groups: {names}.", NO_SUCH_GROUP)
