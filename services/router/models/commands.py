"""Sends the controller's actions to the agents of hosts, those for one host one after another.

After an action nothing more is sent to the host until its reports show what was done: the next decision would
rest on what was there before.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog

from services.router.context import RouterContext
from services.router.domain.models.assumed import Sent
from services.router.domain.models.control_state import Command, Load, ModelFleet, Resize, Stop
from services.router.models.lease import ControllerLease
from shared import subjects
from shared.bus.endpoint import call
from shared.errors import RyzError
from shared.messages import (
    GroupCommanded,
    HostedGroup,
    HostReport,
    KVLimited,
    LimitKV,
    StartGroup,
    StopGroup,
)

log = structlog.get_logger(__name__)
_KINDS: dict[type[Command], str] = {Load: "load", Stop: "stop", Resize: "resize"}
_AFTER_REFUSAL_S = 1.0  # the agent knows better; its next report says why


class HostCommands:
    """Sends actions while the lease is held."""

    def __init__(self, context: RouterContext, lease: ControllerLease) -> None:
        self._bus = context.bus
        self._offered = context.state.models.offered
        self._metrics = context.metrics
        self._clock = context.clock
        self._timeout_s = context.settings.constants.command_timeout_s
        self._lease = lease
        self._busy: dict[str, asyncio.Task[None]] = {}  # by host
        self._under_way: dict[str, Sent] = {}  # by host

    def is_free(self, host: str) -> bool:
        """Whether a decision about this host may be carried out now."""
        return host not in self._busy

    def under_way(self) -> list[Sent]:
        """Commands whose effect is not in the reports yet."""
        return list(self._under_way.values())

    def send(self, host: str, actions: Sequence[Command], view: ModelFleet) -> None:
        """Sends the actions for one host, which has to be free; `view` is what they were decided on."""
        task = asyncio.create_task(self._send_all(host, actions, view), name=f"command host {host}")
        self._busy[host] = task
        task.add_done_callback(lambda done: self._done(host, done))

    async def stop(self) -> None:
        """Sends no more, and waits for the answers that are due."""
        for task in list(self._busy.values()):
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)

    def _done(self, host: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("host not commanded", host=host, exc_info=failure)
        self._busy.pop(host, None)
        self._under_way.pop(host, None)

    async def _send_all(self, host: str, actions: Sequence[Command], view: ModelFleet) -> None:
        for action in actions:
            if not self._lease.is_held(self._clock()):
                return
            if not await self._send(host, action, log_fields(action, view)):
                return

    async def _send(self, host: str, action: Command, fields: dict[str, Any]) -> bool:
        """Sends one action and waits until it shows; returns whether the next one may follow."""
        now_there, epoch = self._report(host), self._lease.epoch
        if now_there is None:
            return False
        running = 0
        if isinstance(action, Load):
            running = sum(group.model == action.model for group in now_there.groups)
        kind = _KINDS[type(action)]
        fields |= {"host": host, "reason": action.reason}
        self._under_way[host] = Sent(action, running)
        try:
            answer = await self._command(host, action, running, epoch)
        except RyzError as error:
            self._metrics.commanded(kind, action.reason, "unanswered")
            log.warning("model action unanswered", action=kind, epoch=epoch, error=error.message, **fields)
            await asyncio.sleep(_AFTER_REFUSAL_S)
            return False
        if answer.refused:
            self._metrics.commanded(kind, action.reason, "refused")
            self._under_way.pop(host, None)
            log.warning("model action refused", action=kind, epoch=epoch, why=answer.refused, **fields)
            await asyncio.sleep(_AFTER_REFUSAL_S)
            return False
        self._metrics.commanded(kind, action.reason, "done")
        fields["group"] = answer.group
        log.info("model action", action=kind, epoch=epoch, **fields)
        await self._shown(host, action, answer)
        return True

    async def _command(
        self, host: str, action: Command, running: int, epoch: int
    ) -> GroupCommanded | KVLimited:
        bus, timeout_s, reason = self._bus, self._timeout_s, action.reason
        if isinstance(action, Resize):
            limit = LimitKV(group=action.group, limit_bytes=action.kv_bytes, epoch=epoch, reason=reason)
            return await call(bus, subjects.limit_hosted_kv(host), limit, KVLimited, timeout_s=timeout_s)
        if isinstance(action, Stop):
            stop = StopGroup(group=action.group, epoch=epoch, reason=reason)
            return await call(bus, subjects.stop_group(host), stop, GroupCommanded, timeout_s=timeout_s)
        start = StartGroup(model=action.model, running=running, epoch=epoch, reason=reason)
        return await call(bus, subjects.start_group(host), start, GroupCommanded, timeout_s=timeout_s)

    async def _shown(self, host: str, action: Command, answer: GroupCommanded | KVLimited) -> None:
        """Waits until a report shows that it was done; at most the time-out."""
        until = self._clock() + self._timeout_s
        while self._clock() < until:
            report = self._report(host)
            group = _group(report, answer.group) if report is not None else None
            if _is_shown(action, answer, group):
                return
            await asyncio.sleep(0.02)
        log.warning("a host does not show what it was commanded", host=host, group=answer.group)

    def _report(self, host: str) -> HostReport | None:
        view = self._offered.host(host)
        return view.report if view is not None else None


def log_fields(action: Command, view: ModelFleet) -> dict[str, Any]:
    """What is logged of an action; of a group that is stopped or resized, also what it had to do."""
    if isinstance(action, Load):
        return {"model": action.model}
    fields: dict[str, Any] = {"group": action.group}
    if action.wanted_by:
        fields["wanted_by"] = action.wanted_by
    if isinstance(action, Resize):
        fields["limit_bytes"] = action.kv_bytes
    groups = (group for host in view.hosts if host.name == action.host for group in host.groups)
    group = next((group for group in groups if group.name == action.group), None)
    if group is not None:
        demand = view.demand.get(group.model)
        wanted = demand.requests if demand is not None else 0
        fields |= {
            "model": group.model,
            "busy": group.busy,
            "wanted": wanted,
            "idle_s": round(group.idle_s, 1),
        }
    return fields


def _is_shown(action: Command, answer: GroupCommanded | KVLimited, group: HostedGroup | None) -> bool:
    if isinstance(action, Load):
        return group is not None
    if isinstance(answer, KVLimited):
        return group is None or group.kv_bytes == answer.limit_bytes
    return group is None or group.phase == "stopping"


def _group(report: HostReport, name: str) -> HostedGroup | None:
    return next((group for group in report.groups if group.group == name), None)
