"""The controller: decides which models hosts load and put to sleep, and has it done while it holds the lease.

Every router decides, since the decision also says which requests to refuse; the holder of the lease acts.
What runs is in the reports and heartbeats, so a new holder needs nothing of the one before.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from services.router.context import RouterContext
from services.router.domain.groups.busy_machine import BusyMachine
from services.router.domain.models.assumed import assume
from services.router.domain.models.control_state import Action, Command, ModelFleet, Refused
from services.router.domain.models.decision import decide
from services.router.models.commands import HostCommands
from services.router.models.lease import ControllerLease
from services.router.presence import RouterPresence
from shared.telemetry.repeated import RepeatedLog

log = structlog.get_logger(__name__)


class ModelController:
    """Run `control` as a task, and call `leave` before the router ends."""

    def __init__(
        self,
        context: RouterContext,
        lease: ControllerLease,
        presence: RouterPresence,
        decide_on: Callable[[ModelFleet], list[Action]] = decide,
    ) -> None:
        self._lease = lease
        self._presence = presence
        self._decide = decide_on
        self._commands = HostCommands(context, lease)
        self._fleet = context.fleet
        self._metrics = context.metrics
        self._repeated = RepeatedLog(log)
        self._models = context.state.models
        self._clock = context.clock
        self._pressure, self._machine = context.pressure, BusyMachine()
        self._models_changed = context.models_changed
        self._tick_s = context.settings.constants.models_tick_s
        self._pause_s = context.settings.constants.models_pause_s

    async def control(self) -> None:
        """Decides several times a second, and at once when a model becomes wanted."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tick_s):
                    await self._models_changed.wait()
            self._models_changed.clear()
            await self._presence.announce_wanted()
            try:
                self.tick(self._clock())
            except Exception:  # a router that ended for this would take away the loaded models as well
                self._metrics.event("control_failed")
                self._repeated.warning("models not decided on", subject="models", exc_info=True)
            await asyncio.sleep(self._pause_s)

    def tick(self, now: float) -> None:
        """Decides once, and has it done if this router holds the lease."""
        self._machine.note(self._pressure(now), now)
        for host in self._models.expire(now, self._machine.patience_s(now)):
            log.warning("a host is silent, and its models are no longer offered", host=host)
        if not self._models.offered:
            self._models.too_large.clear()
            return
        view = assume(self._models.view(self._fleet, now), self._commands.under_way())
        actions = self._decide(view)
        self._note_refused({one.model: one.why for one in actions if isinstance(one, Refused)})
        if not self._lease.is_held(now):
            return
        by_host: dict[str, list[Command]] = {}
        for action in actions:
            if not isinstance(action, Refused):
                by_host.setdefault(action.host, []).append(action)
        for host, ones in by_host.items():
            if self._commands.is_free(host):
                self._commands.send(host, ones, view)

    async def leave(self) -> None:
        """Commands no more, and gives the lease back."""
        await self._commands.stop()
        await self._lease.give_back()

    def _note_refused(self, refused: dict[str, str]) -> None:
        for model in refused.keys() - self._models.too_large.keys():
            log.warning("a model cannot be loaded", model=model, why=refused[model])
        self._models.too_large = refused
