"""The limits of tenants and keys: what a call takes of them, and what its answer tells of them.

Units come from leases (`shared/client/calls/limit_leases.py`). A call that computes takes a request, an
estimate of its tokens and money, and one running request, all of them or none; what it really used is counted
when its generations end. Other requests are counted, and wait for nothing.
"""

import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack

from services.gateway.admission.caller import Caller, Claim
from services.gateway.admission.errors.refusals import Headers
from services.gateway.metrics import GatewayMetrics
from shared.accounts.register import AccountRegister
from shared.bus import Bus
from shared.client.calls.limit_leases import LimitLeases, kept_leases
from shared.client.generation.usage_reports import UsageOwner
from shared.limits.book import NO_LIMITS, Party
from shared.limits.lease import Lease
from shared.limits.money import money_of
from shared.messages import Usage
from shared.messages.tenants.limits import Measure

LOCAL = (b"x-ryz-limits", b"local")
_HEADERS: tuple[tuple[Measure, bytes, bytes, bytes], ...] = (
    (
        "requests",
        b"x-ratelimit-limit-requests",
        b"x-ratelimit-remaining-requests",
        b"x-ratelimit-reset-requests",
    ),
    ("tokens", b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens"),
)


class CallLimits:
    """Takes what calls need, and gives back what they did not use.

    Args:
        leases: Of this gateway.
        register: Tenants and keys with their limits, and prices.
    """

    def __init__(self, leases: LimitLeases, register: AccountRegister) -> None:
        self.leases = leases
        self.register = register

    def enter(self, caller: Caller, *, spends: bool) -> Party:
        """Finds the limits of a caller; raises if one of them is known to be used up.

        Args:
            caller: Who makes the call; gets its limits.
            spends: The call takes tokens; see `spends_tokens`.
        """
        party = caller.limits = self.leases.party(caller.tenant, caller.key_id)
        if party is not NO_LIMITS and caller.background is None:
            try:
                self.leases.check(party, spends=spends)
            except BaseException:
                self._tell(caller)
                raise
        return party

    def count_request(self, caller: Caller) -> None:
        """Counts a request that takes no tokens; raises like `LimitLeases.take`, and waits for nothing."""
        needs = [(lease, 1) for lease in caller.limits.by_measure["requests"]]
        if needs and caller.background is None:
            try:
                self.leases.count(needs)
            finally:
                self._tell(caller)

    def count_call(self, tenant: str, key_id: str) -> bool:
        """Counts a request that has no `Caller`; returns whether the tenant has a limit of requests."""
        party = self.leases.party(tenant, key_id)
        if needs := [(lease, 1) for lease in party.by_measure["requests"]]:
            self.leases.count(needs)
        return has_own(party, "requests")

    def take_call(self, caller: Caller, tokens: int) -> Awaitable[None] | None:
        """Takes what a call with a body needs; see `LimitLeases.take`.

        Args:
            caller: Has its limits.
            tokens: Estimated, of its prompt.
        """
        party = caller.limits
        needs = _needs(party, max(1, tokens), everything=caller.background is None)
        if not needs:
            return None
        try:
            pending = self.leases.take(needs)
        except BaseException:
            self._tell(caller)
            raise
        if pending is None:
            self._took(caller, needs)
            return None
        return self._wait(pending, caller, needs)

    def hold_running(self, tenant: str, key_id: str) -> Claim:
        """Counts a generation that runs already, whatever is left of the limits: nothing refuses it.

        Returns:
            What `give_back` takes at its end.
        """
        held = []
        for lease in self.leases.party(tenant, key_id).by_measure["running"]:
            self.leases.owe(lease, 1)
            held.append((lease, 1, lease.began_ms))
        return held

    def give_back(self, claim: Claim) -> None:
        """Gives back what `hold_running` counted."""
        if claim:
            self.leases.put_back(claim)

    def release(self, caller: Caller) -> None:
        """Gives back the estimates and the running request of a call, at its end."""
        if caller.claim:
            self.leases.put_back(caller.claim)
            caller.claim = []

    def charge(self, owner: UsageOwner, usage: Usage) -> bool:
        """Counts what a generation used; returns whether its tokens count for a limit of the tenant's own."""
        party = self.leases.party(owner.tenant, owner.key_id)
        if party is NO_LIMITS:
            return False
        tokens = usage.prompt_tokens + usage.completion_tokens
        for lease in party.by_measure["tokens"]:
            self.leases.owe(lease, tokens)
        if party.by_measure["money"]:
            price = self.register.price(owner.model)
            money = money_of(price, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
            for lease in party.by_measure["money"]:
                self.leases.owe(lease, money)
        return has_own(party, "tokens")

    def headers_of(self, tenant: str, key_id: str) -> Headers:
        """As `headers`, for a call that has no `Caller`."""
        return self.headers(self.leases.party(tenant, key_id))

    def headers(self, party: Party) -> Headers:
        """What remains of the tightest limits, and whether this gateway counts alone."""
        found: Headers = []
        now = time.monotonic()
        for measure, limit, remaining, reset in _HEADERS:
            lease = party.tightest(measure)
            if lease is not None:
                found.append((limit, b"%d" % lease.pool.limit))
                found.append((remaining, b"%d" % lease.remaining))
                found.append((reset, b"%.3fs" % max(0.0, lease.ends_at - now)))
        if self.leases.is_local and party.leases:
            found.append(LOCAL)
        return found

    async def _wait(self, pending: Awaitable[None], caller: Caller, needs: list[tuple[Lease, int]]) -> None:
        try:
            await pending
        except BaseException:
            self._tell(caller)
            raise
        self._took(caller, needs)

    def _took(self, caller: Caller, needs: list[tuple[Lease, int]]) -> None:
        caller.claim = [
            (lease, units, lease.began_ms) for lease, units in needs if lease.pool.name.measure != "requests"
        ]
        self._tell(caller)

    def _tell(self, caller: Caller) -> None:
        caller.response_headers += self.headers(caller.limits)


def has_own(party: Party, measure: Measure) -> bool:
    """Whether the tenant has a limit of its own of these units, in place of that of the settings."""
    return any(not lease.pool.name.key_id for lease in party.by_measure[measure])


def _needs(party: Party, tokens: int, *, everything: bool) -> list[tuple[Lease, int]]:
    """What a call needs; work in the background (not `everything`) has no limits of minutes and places."""
    found = [*party.of_requests] if everything else []
    for lease in party.by_measure["tokens"]:
        if everything or lease.pool.name.window != "minute":
            found.append((lease, min(tokens, lease.pool.limit)))
    for lease in party.by_measure["money"]:
        found.append((lease, min(max(1, lease.typical), lease.pool.limit)))
    return found


async def call_limits(
    bus: Bus, register: AccountRegister, instance_id: str, metrics: GatewayMetrics, stack: AsyncExitStack
) -> CallLimits:
    """Returns limits over the copy of the records; their leases are kept until the stack closes."""
    leases = await kept_leases(bus, register, instance_id, stack)
    metrics.limits_local.set_function(lambda: float(leases.is_local))
    return CallLimits(leases, register)
