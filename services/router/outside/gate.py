"""Admits requests of users outside: counts them before it reads them, and refuses them cheaply.

A refusal costs a router as much as a request, and a user outside can cause as many as it likes. So each user
gets an answer to some refusals a second, and the others are only counted. A user's limits are its own, if
`ryz bus-users` has some, else those of the settings. The file of limits is checked once a second while such
users send requests; if it cannot be read, the limits before stand.
"""

import math
from pathlib import Path
from typing import NamedTuple

import structlog

from services.router.context import RouterContext
from services.router.dispatch import Dispatcher
from services.router.incoming import Incoming, read, sender
from shared.bus import Message
from shared.bus.users import read_users
from shared.client.calls.limit_leases import LimitLeases
from shared.errors import InvalidRequest, Overloaded, RyzError
from shared.flow.token_bucket import TokenBuckets
from shared.subjects import caller_of

POLL_S = 1.0
log = structlog.get_logger(__name__)
READ_OF_REFUSED = 16 * 1024  # bytes of a request over the rate that are read to find its sender
BYTES_OF_ONE = 16 * 1024  # a longer message counts as several requests: it takes as long to read
ANSWERS_S = 100.0  # refusals of each user that are answered a second
MOST_DEBT_S = 58.0  # no single request keeps a user out for longer


class UserLimits(NamedTuple):
    """The limits of one user; `max_rps`: requests a second, 0: no limit."""

    max_rps: float
    max_priority: int


class UserLimitsFile:
    """Reads the users' own limits from a file; an empty name: all users have the default."""

    def __init__(self, file: str, default: UserLimits) -> None:
        self._path = Path(file) if file else None
        self._default = default
        self._own: dict[str, UserLimits] = {}
        self._checked_at = -math.inf
        self._stamp: tuple[int, int, int] | None = None

    def of(self, user: str, now: float) -> UserLimits:
        """The limits of that user."""
        if self._path is not None and now - self._checked_at >= POLL_S:
            self._checked_at = now
            self._look(self._path)
        return self._own.get(user, self._default)

    def _look(self, path: Path) -> None:
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except FileNotFoundError:
            stamp = None
        except OSError as error:
            log.warning("bus users not read", path=str(path), error=error.strerror)
            return
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            users = read_users(path).users
        except InvalidRequest as error:
            log.warning("bus users not read, the limits before stand", error=error.message)
            return
        default = self._default
        self._own = {
            user.name: UserLimits(
                default.max_rps if user.max_rps is None else user.max_rps,
                default.max_priority if user.max_priority is None else user.max_priority,
            )
            for user in users
        }


class OutsideGate:
    """Reads requests of users outside within their limits."""

    def __init__(self, context: RouterContext, dispatcher: Dispatcher, leases: LimitLeases) -> None:
        settings = context.settings
        self._leases = leases
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
        if incoming.facts.slots > 1:
            self._rates.charge_units(user, limits.max_rps, now, incoming.facts.slots - 1, routers)
        try:
            await self._take_limits(incoming)
        except RyzError as error:
            reason = str(error.data.get("reason", error.code))
            if self._may_answer(user, "tenant_limit", now):
                await self._dispatcher.fail_request(sender(message, READ_OF_REFUSED), error, reason)
            return None
        return incoming

    async def _take_limits(self, incoming: Incoming) -> None:
        """Takes what a new request needs of its tenant's limits, all of it or none.

        Running requests are not counted: a router does not see their ends. Tokens and money are those of the
        prompt, by its length; sums of usage correct the days and months.

        Raises:
            RyzError: A limit has too little left, or cannot be counted now.
        """
        if incoming.attempt > 0:
            return
        party = self._leases.party(incoming.asker.tenant, "")
        needs = []
        for lease in party.leases:
            name = lease.pool.name
            units = max(1, incoming.facts.prompt_tokens) if name.measure == "tokens" else 1
            if name.measure != "running":
                needs.append((lease, min(units, lease.pool.limit)))
        if needs and (pending := self._leases.take(needs)) is not None:
            await pending

    def _may_answer(self, user: str, reason: str, now: float) -> bool:
        """False if the user got enough refusals already: this one is only counted."""
        if not self._answers.take_units(user, ANSWERS_S, now):
            return True
        self._metrics.unanswered(reason)
        return False
