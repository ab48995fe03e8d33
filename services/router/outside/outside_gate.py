"""Admits requests of users outside: counts them before it reads them, and refuses them cheaply.

A refusal costs a router as much as a request, and a user outside can cause as many as it likes. So each user
gets an answer to some refusals a second, and the others are only counted.
"""

from services.router.dispatch import Dispatcher
from services.router.incoming import Incoming, read, sender
from services.router.outside.user_limits import UserLimits, UserLimitsFile
from services.router.router_context import RouterContext
from shared.bus import Message
from shared.errors import Overloaded, RyzError
from shared.flow.token_bucket import TokenBuckets
from shared.subjects import caller_of

READ_OF_REFUSED = 16 * 1024  # bytes of a request over the rate that are read to find its sender
BYTES_OF_ONE = 16 * 1024  # a longer message counts as several requests: it takes as long to read
ANSWERS_S = 100.0  # refusals of each user that are answered a second
MOST_DEBT_S = 58.0  # no single request keeps a user out for longer


class OutsideGate:
    """Reads requests of users outside within their limits."""

    def __init__(self, context: RouterContext, dispatcher: Dispatcher) -> None:
        settings = context.settings
        default = UserLimits(settings.router_outside_rps, settings.router_outside_max_priority)
        self._limits = UserLimitsFile(settings.router_bus_users, default)
        self._rates = TokenBuckets(max_debt_s=MOST_DEBT_S)
        self._answers = TokenBuckets()
        self._dispatcher = dispatcher
        self._metrics = context.metrics
        self._routers = context.fleet.routers

    async def admit(self, message: Message, now: float) -> Incoming | None:
        """The request in a message; None if it was refused."""
        caller = caller_of(message.subject)
        user = caller.user if caller is not None else ""
        limits = self._limits.of(user, now)
        cost, routers = 1 + len(message.data) // BYTES_OF_ONE, self._routers.count(now)
        wait_s = self._rates.take_units(user, limits.max_rps, now, cost, routers)
        if wait_s:
            if self._may_answer(user, "user_rate", now):
                error = Overloaded(
                    f"user {user} makes more than {limits.max_rps:g} requests a second (one counts n times, "
                    "and once more for every 16 KiB); send fewer, or raise its `--max-rps` "
                    "(`ryz bus-users`) or RYZ_ROUTER_OUTSIDE_RPS",
                    reason="user_rate",
                    retry_after_s=wait_s,
                )
                await self._dispatcher.fail_request(sender(message, READ_OF_REFUSED), error, "user_rate")
            return None
        try:
            incoming = read(message, now, limits.max_priority)
        except RyzError as error:
            if self._may_answer(user, "invalid", now):
                await self._dispatcher.fail_request(sender(message, READ_OF_REFUSED), error, "invalid")
            return None
        if incoming.facts.places > 1:
            self._rates.charge_units(user, limits.max_rps, now, incoming.facts.places - 1, routers)
        return incoming

    def _may_answer(self, user: str, reason: str, now: float) -> bool:
        """False: the user was told of enough refusals; this one is counted alone."""
        if not self._answers.take_units(user, ANSWERS_S, now):
            return True
        self._metrics.unanswered(reason)
        return False
