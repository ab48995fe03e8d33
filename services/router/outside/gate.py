"""Admits requests of users outside: counts them before it reads them, and refuses them cheaply.

A refusal costs a router as much as a request, and a user outside can cause as many as it likes. So each user
gets an answer to some refusals a second, and the others are only counted. A user's limits are those of its
record, else those of the settings. A user that was revoked is refused here as soon as that is heard, also if
the broker still lets it in.
"""

import time
from typing import NamedTuple

from msgspec.structs import replace

from services.router.context import RouterContext
from services.router.dispatch import Dispatcher
from services.router.incoming import Incoming, read, sender
from services.router.outside.running import RunningRequests
from shared.accounts.bus_users import check_bus_user
from shared.bus import Message
from shared.client.calls.limit_leases import LimitLeases
from shared.errors import Overloaded, RyzError
from shared.flow.token_bucket import TokenBuckets
from shared.messages import KeyRecord
from shared.subjects import OutsideService, caller_of

READ_OF_REFUSED = 16 * 1024  # bytes of a request over the rate that are read to find its sender
BYTES_OF_ONE = 16 * 1024  # a longer message counts as several requests: it takes as long to read
ANSWERS_S = 100.0  # refusals of each user that are answered a second
MOST_DEBT_S = 58.0  # no single request keeps a user out for longer
_NOBODY = OutsideService("", "")  # of a subject that names no caller: a user without a record


class UserLimits(NamedTuple):
    """The limits of one user; `max_rps`: requests a second, 0: no limit."""

    max_rps: float
    max_priority: int


class OutsideGate:
    """Reads requests of users outside within their limits."""

    def __init__(
        self, context: RouterContext, dispatcher: Dispatcher, leases: LimitLeases, running: RunningRequests
    ) -> None:
        settings = context.settings
        self._leases = leases
        self._running = running
        self._default = UserLimits(settings.router_outside_rps, settings.router_outside_max_priority)
        self._accounts = context.state.accounts
        self._rates = TokenBuckets(max_debt_s=MOST_DEBT_S)
        self._answers = TokenBuckets()
        self._dispatcher = dispatcher
        self._metrics = context.metrics
        self._routers = context.fleet.routers

    async def admit(self, message: Message, now: float, *, again: bool = False) -> Incoming | None:
        """The request in a message; None if it was refused.

        Args:
            message: From a user outside.
            now: When it came.
            again: Its sender publishes it to all routers since nothing has answered. It may run already, by
                way of another router; then an answer that no more may run would end it for its sender.
        """
        caller = caller_of(message.subject) or _NOBODY
        user = caller.user
        record = self._accounts.bus_user(user)
        limits = self._limits_of(record)
        cost, routers = 1 + len(message.data) // BYTES_OF_ONE, self._routers.count(now)
        wait_s = self._rates.take_units(user, limits.max_rps, now, cost, routers)
        if wait_s:
            if self._may_answer(user, "user_rate", now):
                error = Overloaded(
                    f"user {user} makes more than {limits.max_rps:g} requests a second (one counts n times, "
                    "and once more for every 16 KiB); send fewer, or raise its `--max-rps` "
                    "(`ryz keys set`) or RYZ_ROUTER_OUTSIDE_RPS",
                    reason="user_rate",
                    retry_after_s=wait_s,
                )
                await self._dispatcher.fail_request(sender(message, READ_OF_REFUSED), error, "user_rate")
            return None
        try:
            check_bus_user(self._accounts, caller, time.time())
        except RyzError as error:
            reason = str(error.data["reason"])
            if self._may_answer(user, reason, now):
                await self._dispatcher.fail_request(sender(message, READ_OF_REFUSED), error, reason)
            return None
        key_id = "" if record is None else record.key_id
        try:
            incoming = read(message, now, limits.max_priority, key_id)
        except RyzError as error:
            if self._may_answer(user, "invalid", now):
                await self._dispatcher.fail_request(sender(message, READ_OF_REFUSED), error, "invalid")
            return None
        if incoming.facts.slots > 1:
            self._rates.charge_units(user, limits.max_rps, now, incoming.facts.slots - 1, routers)
        try:
            return await self._take_limits(incoming, key_id)
        except RyzError as error:
            reason = str(error.data.get("reason", error.code))
            if again and reason.endswith("_running"):
                self._metrics.unanswered(reason)
            elif self._may_answer(user, "tenant_limit", now):
                await self._dispatcher.fail_request(sender(message, READ_OF_REFUSED), error, reason)
            return None

    def _limits_of(self, record: KeyRecord | None) -> UserLimits:
        terms, default = None if record is None else record.bus_user, self._default
        if terms is None:
            return default
        return UserLimits(
            default.max_rps if terms.max_rps is None else terms.max_rps,
            default.max_priority if terms.max_priority is None else terms.max_priority,
        )

    async def _take_limits(self, incoming: Incoming, key_id: str) -> Incoming:
        """Takes what a request needs of its tenant's limits and its user's, all of it or none.

        One that its client publishes again counts again: any user could say that of all its requests. As a
        running request it counts once. Tokens and money are those of the prompt, by its length; sums of usage
        correct the days and months.

        Returns:
            The request with its unit of running requests.

        Raises:
            RyzError: A limit has too little left, or cannot be counted now.
        """
        tenant = incoming.asker.tenant
        party = self._leases.party(tenant, key_id)
        attempt = tenant, incoming.request_id, incoming.attempt
        unit = self._running.units.find(attempt)
        runs = [(lease, 1) for lease in party.by_measure["running"]] if unit is None else []
        needs = [*runs]
        for lease in party.leases:
            measure = lease.pool.name.measure
            units = max(1, incoming.facts.prompt_tokens) if measure == "tokens" else 1
            if measure != "running":
                needs.append((lease, min(units, lease.pool.limit)))
        if needs and (pending := self._leases.take(needs)) is not None:
            await pending
        if runs:
            unit = self._running.hold(attempt, runs)
        return incoming if unit is None else replace(incoming, unit=unit)

    def _may_answer(self, user: str, reason: str, now: float) -> bool:
        """False if the user got enough refusals already: this one is only counted."""
        if not self._answers.take_units(user, ANSWERS_S, now):
            return True
        self._metrics.unanswered(reason)
        return False
