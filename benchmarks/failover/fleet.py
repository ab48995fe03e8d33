"""Follows groups that are being killed: their heartbeats, processes, and seconds spent on fetches."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from benchmarks.lib.measuring import BenchError
from benchmarks.lib.service_metrics import read_metrics
from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.messages import GroupDown, Heartbeat, ServiceStatus, StatusQuery

_GROUPS = 2
_READY_S = 60.0  # one to four seconds on an idle machine
_STATUS_S = 0.5
_SILENT_S = 0.25
_GONE = {"ended", "frozen", "hung"}
_FETCH_SECONDS = "ryz_worker_kv_fetch_seconds"


@dataclass(slots=True)
class FleetProbe:
    """The groups by their heartbeats and statuses.

    Attributes:
        hears: Connection of a user that may read heartbeats.
        asks: Connection of a user that may ask for statuses.
        beats: Each group's last heartbeat, and when it came.
        lost_at: When a router last gave each group up.
        admin_urls: Where each group's leader serves metrics.
    """

    hears: NatsBus
    asks: NatsBus
    beats: dict[str, tuple[Heartbeat, float]] = field(default_factory=dict)
    lost_at: dict[str, float] = field(default_factory=dict)
    admin_urls: dict[str, str] = field(default_factory=dict)

    async def listen(self) -> None:
        """Subscribe to heartbeats and to losses."""
        await self.hears.subscribe(subjects.HEARTBEAT_ALL, self._beat)
        await self.hears.subscribe(subjects.GROUP_DOWN, self._down)

    async def _down(self, message: Message) -> None:
        with suppress(InvalidRequest):
            self.lost_at[decode(message.data, GroupDown).group] = time.monotonic()

    async def _beat(self, message: Message) -> None:
        try:
            heartbeat = decode(message.data, Heartbeat)
        except InvalidRequest:
            return
        self.beats[heartbeat.group] = heartbeat, time.monotonic()

    def ready(self, group: str, since: float = 0.0) -> bool:
        """Return whether the group has said after that moment that it is ready."""
        heartbeat, at = self.beats.get(group, (None, 0.0))
        return heartbeat is not None and _says_ready(heartbeat) and at > since

    async def await_away(self, group: str, since: float) -> None:
        """Wait until the group says that it is not ready, or is silent."""
        while True:
            heartbeat, at = self.beats[group]
            if (at > since and not _says_ready(heartbeat)) or time.monotonic() - at > _SILENT_S:
                return
            await asyncio.sleep(0.005)
            if time.monotonic() > since + _READY_S:
                raise BenchError(f"group {group} did not notice within {_READY_S:g} s")

    async def await_lost(self, group: str, since: float) -> None:
        """Wait until a router gives the group up after that moment."""
        while self.lost_at.get(group, 0.0) <= since:
            await asyncio.sleep(0.005)
            if time.monotonic() > since + _READY_S:
                raise BenchError(f"no router gave group {group} up within {_READY_S:g} s")

    async def await_back(self, group: str, since: float) -> None:
        """Wait until the group says after that moment that it is ready."""
        while not self.ready(group, since):
            await asyncio.sleep(0.005)
            if time.monotonic() > since + _READY_S:
                raise BenchError(
                    f"group {group} did not come back within {_READY_S:g} s; {self._last_state(group)}"
                )

    def _last_state(self, group: str) -> str:
        heartbeat, at = self.beats[group]
        return f"its last heartbeat, {time.monotonic() - at:.1f} s ago, said that it is {heartbeat.state}"

    async def await_streams(self, least: int) -> dict[str, tuple[int, list[int]]]:
        """Wait until all groups are ready and run `least` sequences; return `pids()`."""
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            fresh = time.monotonic() - 1
            running = [beat.load.running for beat, _ in self.beats.values()]
            ready = len(self.beats) >= _GROUPS and all(self.ready(group, fresh) for group in self.beats)
            if ready and min(running) >= least:
                groups = await self.pids()
                if len(groups) == len(self.beats) and all(ranks for _, ranks in groups.values()):
                    return groups
            await asyncio.sleep(0.02)
        raise BenchError(f"the groups were not all at work within {_READY_S:g} s")

    async def await_running(self, group: str, least: int) -> None:
        """Wait until a heartbeat that comes from now on says that the group runs `least` sequences."""
        began = time.monotonic()
        while True:
            heartbeat, at = self.beats[group]
            if at > began and heartbeat.load.running >= least:
                return
            await asyncio.sleep(0.002)
            if time.monotonic() > began + _READY_S:
                raise BenchError(f"group {group} had no {least} streams within {_READY_S:g} s")

    async def fetches(self) -> dict[str, tuple[float, float]]:
        """Return how many fetches of KV each group has done, and the seconds that they took."""
        done = {}
        async with httpx.AsyncClient(timeout=2.0) as http:
            for group, url in self.admin_urls.items():
                with suppress(httpx.HTTPError):
                    metrics = await read_metrics(http, url)
                    done[group] = (
                        metrics.value(f"{_FETCH_SECONDS}_count"),
                        metrics.value(f"{_FETCH_SECONDS}_sum"),
                    )
        return done

    async def pids(self) -> dict[str, tuple[int, list[int]]]:
        """Return the process id of each group's leader, and those of its ranks."""
        found: dict[str, tuple[int, list[int]]] = {}
        inbox = self.asks.new_inbox()

        async def on_answer(message: Message) -> None:
            status = decode(message.data, ServiceStatus)
            if status.service == "worker":
                ranks = [int(rank["pid"]) for rank in status.detail["ranks"]]
                group = str(status.detail["group"])
                found[group] = status.pid, ranks
                self.admin_urls[group] = str(status.detail["admin_url"])

        subscription = await self.asks.subscribe(inbox, on_answer)
        await self.asks.publish(subjects.STATUS, encode(StatusQuery()), reply=inbox)
        deadline = time.monotonic() + _STATUS_S
        while len(found) < len(self.beats) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await subscription.unsubscribe()
        return found


def _says_ready(heartbeat: Heartbeat) -> bool:
    """Whether the leader is ready, and not gone as the process that sends its heartbeats may know."""
    vitals = heartbeat.vitals
    return heartbeat.state == "ready" and (vitals is None or vitals.leader not in _GONE)


def mean_fetch_s(
    before: Mapping[str, tuple[float, float]], after: Mapping[str, tuple[float, float]], *, without: str
) -> float:
    """Return the mean seconds of one fetch between two samples; 0 if there was none, or no sample."""
    count = seconds = 0.0
    for group, (later_count, later_s) in after.items():
        if group != without and group in before:
            count += later_count - before[group][0]
            seconds += later_s - before[group][1]
    return seconds / count if count > 0 else 0.0
