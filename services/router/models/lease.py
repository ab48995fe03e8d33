"""The lease under which one router commands the agents of hosts.

The lease counts from before it was asked for, so this router never believes in it for longer than the KV
state service does. A holder that was killed is replaced after the lease's time at most, and one claim.
"""

import asyncio
from math import inf

import structlog

from services.router.context import RouterContext
from shared import subjects
from shared.bus.endpoint import call
from shared.errors import RyzError
from shared.messages import LeaseClaim, LeaseHeld
from shared.telemetry.repeated import RepeatedLog

NAME = "models"
_RETRY_S = 0.25  # after a claim that failed, and while no host has reported
_MAX_EPOCH = 2**53 - 2  # Lua counts in floats
_SLACK_S = 0.02  # after the end of another holder's lease
log = structlog.get_logger(__name__)


class ControllerLease:
    """Run `keep` as a task, and call `give_back` before the router ends.

    Attributes:
        epoch: Epoch of the last lease that this router had.
        holder: The router that has it, as the KV state service said last; empty: not known.
    """

    def __init__(self, context: RouterContext) -> None:
        self.epoch = 0
        self.holder = ""
        self._bus = context.bus
        self._offered = context.state.models.offered
        self._clock = context.clock
        self._router_id = context.settings.instance_id
        self._ttl_s = context.settings.constants.lease_ttl_s
        self._every_s = context.settings.constants.lease_claim_s
        self._valid_until = -inf
        self._leaves = False
        self._repeated = RepeatedLog(log)

    def is_held(self, now: float) -> bool:
        """Whether this router may command now."""
        return now < self._valid_until

    async def keep(self) -> None:
        """Claims the lease again and again; makes no calls while no host has reported."""
        while not self._leaves:
            pause_s = await self._claim() if self._offered else _RETRY_S
            await asyncio.sleep(pause_s)

    async def give_back(self) -> None:
        """Gives the lease back, so that another router takes it at once."""
        self._leaves = True
        if not self.is_held(self._clock()):
            return
        self._valid_until = -inf
        try:
            await self._ask(0.0)
        except RyzError as error:
            log.debug("lease not given back", lease=NAME, error=error.message)

    async def _claim(self) -> float:
        """Claims the lease once; returns the seconds until the next claim."""
        asked_at = self._clock()
        try:
            held = await self._ask(self._ttl_s)
        except RyzError as error:
            # the stack does not load models meanwhile; those that are loaded answer on
            self._repeated.warning("lease not claimed", subject=subjects.LEASE, lease=NAME,
                                   error=error.message,
                                   remedy="see that the KV state service runs and reaches Redis")  # fmt: skip
            return _RETRY_S
        if self._leaves:
            return 0.0
        if held.holder != self.holder or (held.holder == self._router_id and held.epoch != self.epoch):
            log.info("lease", lease=NAME, holder=held.holder, epoch=held.epoch,
                     own=held.holder == self._router_id)  # fmt: skip
        self.holder = held.holder
        if held.holder == self._router_id:
            self.epoch, self._valid_until = held.epoch, asked_at + self._ttl_s
            return self._every_s
        self._valid_until = -inf
        return min(self._every_s, held.ttl_ms / 1000 + _SLACK_S)

    async def _ask(self, ttl_s: float) -> LeaseHeld:
        heard = max((host.report.epoch for host in self._offered.hosts()), default=0)
        claim = LeaseClaim(
            name=NAME, holder=self._router_id, ttl_ms=int(ttl_s * 1000), heard_epoch=min(heard, _MAX_EPOCH)
        )
        return await call(self._bus, subjects.LEASE, claim, LeaseHeld, timeout_s=self._every_s)
