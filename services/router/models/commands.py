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
from services.router.domain.models.control_state import Load, ModelFleet, Stop
from services.router.models.lease import ControllerLease
from shared import subjects
from shared.bus.endpoint import call
from shared.errors import RyzError
from shared.messages import GroupCommanded, HostedGroup, HostReport, StartGroup, StopGroup

log = structlog.get_logger(__name__)
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

    def send(self, host: str, actions: Sequence[Load | Stop], view: ModelFleet) -> None:
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

    async def _send_all(self, host: str, actions: Sequence[Load | Stop], view: ModelFleet) -> None:
        for action in actions:
            if not self._lease.is_held(self._clock()):
                return
            if not await self._send(host, action, stop_fields(action, view)):
                return

    async def _send(self, host: str, action: Load | Stop, fields: dict[str, Any]) -> bool:
        """Sends one action and waits until it shows; returns whether the next one may follow."""
        now_there, epoch = self._report(host), self._lease.epoch
        if now_there is None:
            return False
        if isinstance(action, Load):
            kind, subject = "load", subjects.start_group(host)
            running = sum(group.model == action.model for group in now_there.groups)
            command: StartGroup | StopGroup = StartGroup(
                model=action.model, running=running, epoch=epoch, reason=action.reason
            )
            fields["model"] = action.model
        else:
            kind, subject = "stop", subjects.stop_group(host)
            command = StopGroup(group=action.group, epoch=epoch, reason=action.reason)
        fields |= {"host": host, "reason": action.reason}
        self._under_way[host] = Sent(action, command.running if isinstance(command, StartGroup) else 0)
        try:
            answer = await call(self._bus, subject, command, GroupCommanded, timeout_s=self._timeout_s)
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
        await self._shown(host, answer.group, starts=isinstance(action, Load))
        return True

    async def _shown(self, host: str, name: str, *, starts: bool) -> None:
        """Waits until a report shows that the group starts, or that it stops; at most the time-out."""
        until = self._clock() + self._timeout_s
        while self._clock() < until:
            report = self._report(host)
            group = _group(report, name) if report is not None else None
            if (group is not None) if starts else (group is None or group.phase == "stopping"):
                return
            await asyncio.sleep(0.02)
        log.warning("a host does not show what it was commanded", host=host, group=name)

    def _report(self, host: str) -> HostReport | None:
        view = self._offered.host(host)
        return view.report if view is not None else None


def stop_fields(action: Load | Stop, view: ModelFleet) -> dict[str, Any]:
    """What is logged of a group that is stopped: what it had to do, and who wanted its model."""
    if isinstance(action, Load):
        return {}
    fields: dict[str, Any] = {"group": action.group}
    if action.wanted_by:
        fields["wanted_by"] = action.wanted_by
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


def _group(report: HostReport, name: str) -> HostedGroup | None:
    return next((group for group in report.groups if group.group == name), None)
