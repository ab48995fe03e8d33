"""Admits calls: finds who makes them, and takes what the call needs of rates, places, bytes and tokens.

All transports use this one object. What a caller holds is noted in `Caller`, and `release` gives it back.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from services.gateway.admission.bodies.large import LargeBodies, is_large
from services.gateway.admission.caller import Caller
from services.gateway.admission.identity.identities import Identities
from services.gateway.admission.identity.identity import Identity, check_scopes, spends_tokens
from services.gateway.admission.limits.call_limits import CallLimits, has_own
from services.gateway.admission.parties import Parties
from services.gateway.admission.quota import Quota
from services.gateway.admission.rate_limits import RateLimiter, tokens_per_minute
from shared.client.generation.usage_reports import UsageOwner
from shared.errors import Unavailable
from shared.messages import Usage

BYTES_PER_TOKEN = 4  # of a body, for the estimate of a prompt


@dataclass(slots=True)
class Admission:
    """Decides which calls are taken now.

    Attributes:
        identities: Find who makes calls.
        parties: Find for whom a call counts.
        rates: Limits the calls of tenants.
        slots: Places of calls under way.
        held: Bytes of bodies.
        accepting: Whether calls are welcome.
        tokens: Limits the tokens of tenants.
        large: Turns of large bodies.
        limits: Of tenants and keys that have some of their own, over all gateways.
    """

    identities: Identities
    parties: Parties
    rates: RateLimiter
    slots: Quota
    held: Quota
    accepting: Callable[[], bool]
    limits: CallLimits
    tokens: RateLimiter = field(default_factory=lambda: tokens_per_minute(0))
    large: LargeBodies = field(default_factory=LargeBodies)

    def check_accepting(self) -> None:
        """Raises `Unavailable` while no calls are welcome."""
        if not self.accepting():
            raise Unavailable(
                "this gateway takes no requests any more: it stops",
                reason="not_ready",
                retry_after_s=1.0,
            )

    def admit(self, caller: Caller) -> None:
        """Finds who makes a call, and checks whether it may be made now.

        Every answer tells what is left of the tenant's rate, if it has a limit.

        Raises:
            Unavailable: No calls are welcome, or keys cannot be looked up.
            RateLimited: The tenant is over its rate, or the address sent too many wrong keys.
            HttpRefusal: The key is not valid, or not for this call.
        """
        now_s = time.monotonic()
        self.check_accepting()
        identity = caller.identity = self._identity_of(caller)
        caller.tenant = identity.tenant
        check_scopes(identity, caller.route, caller.method)
        caller.party = self.parties.party_of(caller.tenant, caller.client)
        limits = self.limits.enter(caller, spends=spends_tokens(caller.route, caller.method))
        if caller.background is not None or has_own(limits, "requests"):
            return
        try:
            self.rates.take_units(caller.tenant, now_s)
        finally:
            caller.response_headers += self.rates.headers(caller.tenant, now_s)

    def _identity_of(self, caller: Caller) -> Identity:
        if caller.identity is not None:
            return self.identities.renewed(caller.identity)
        if caller.named_tenant:
            return self.identities.named(caller.named_tenant)
        return self.identities.of_headers(caller.headers, caller.route, caller.client)

    def take_slots(self, caller: Caller, count: int) -> None:
        """Takes places that the call holds until its end; raises like `Quota.take_units`."""
        self.slots.take_units(caller.party, count)
        caller.slots += count

    def take_body(self, caller: Caller, size: int) -> Awaitable[None] | None:
        """Takes what a call with a body needs: units of its limits, and one place.

        Args:
            caller: Its bytes are held already.
            size: Bytes of the body, for an estimate of its tokens.

        Returns:
            None if that is done; else what is to be awaited, which raises the same errors.

        Raises:
            RateLimited: The tenant or key is over a limit, or the party has its share of the places.
            QuotaUsedUp: It has spent its money.
            Unavailable: Its limits cannot be counted now.
            Overloaded: All places are taken.
        """
        self.take_slots(caller, 1)
        caller.timeline.mark("read", {"bytes": size})
        if not spends_tokens(caller.route, caller.method):
            self.limits.count_request(caller)
            return None
        tokens = size // BYTES_PER_TOKEN
        if not has_own(caller.limits, "tokens"):
            now_s = time.monotonic()
            try:
                caller.estimate = self.tokens.take_estimate(caller.tenant, now_s, tokens)
            finally:
                caller.response_headers += self.tokens.headers(caller.tenant, now_s)
        return self.limits.take_call(caller, tokens)

    def body_slot(self, caller: Caller, raw: bytes) -> AbstractAsyncContextManager[None]:
        """The turn to parse a body without awaiting anything; a small one needs to wait for none."""
        return self.large.body_slot(caller.party) if is_large(raw) else nullcontext()

    def release(self, caller: Caller) -> None:
        """Gives back what a call holds, at its end."""
        self.slots.free_units(caller.party, caller.slots)
        self.held.free_units(caller.party, caller.held)
        # what its generations used is charged when their last frames come
        self.tokens.charge(caller.tenant, -caller.estimate)
        self.limits.release(caller)

    def charge(self, owner: UsageOwner, usage: Usage) -> None:
        """Counts what a generation used, when it has ended."""
        if not self.limits.charge(owner, usage):
            self.tokens.charge(owner.tenant, usage.prompt_tokens + usage.completion_tokens)
