"""Claims a group's name: a leader asks before it starts, and refuses to start beside a living one.

A leader that has the name answers. One that was killed or is frozen does not, so its successor waits for
`wait_s` only. Of two that ask at the same moment each gets the other's claim; the earlier one wins.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import Callable

import structlog

from shared import subjects
from shared.bus.api import Bus, Message, NoResponders, RequestTimedOut, Subscription
from shared.bus.endpoint import Endpoint, call
from shared.errors import InvalidRequest, RyzError
from shared.messages import ClaimGroup, GroupClaimed, State
from shared.telemetry.repeated import RepeatedLog

log = structlog.get_logger(__name__)
LEAVING: frozenset[State] = frozenset({"draining", "stopped"})
CLAIM_WAIT_S = 0.2  # for the answer of a living leader; a dead or frozen one gives none
LEAVING_WAIT_S = 30.0  # for a leader that has the name and is about to end, as in a rolling update


class NameClaim:
    """The claim of one leader. Call `take` before the first heartbeat, and `release` at the end.

    Args:
        group: The name.
        instance_id: Of the leader.
        bus: Carries the claims.
        state: Returns the group's state, for leaders that ask.
    """

    def __init__(self, group: str, instance_id: str, *, bus: Bus, state: Callable[[], State]) -> None:
        self._claim = ClaimGroup(
            group=group,
            instance_id=instance_id,
            claim_id=secrets.token_hex(8),
            host=socket.gethostname(),
            since_ms=int(time.time() * 1000),
        )
        self._bus = bus
        self._state = state
        self._earlier: ClaimGroup | None = None  # of one that asked at the same moment
        self._taken = False
        self._repeated = RepeatedLog(log)
        self._subscription: Subscription | None = None

    def answer_for(self, state: Callable[[], State]) -> None:
        """Tell leaders that ask this state from now on."""
        self._state = state

    async def is_free(self) -> bool:
        """Whether no leader has the name, or asks for it: the broker knows. Before `take`, which decides."""
        try:
            await call(
                self._bus,
                subjects.claim(self._claim.group),
                self._claim,
                GroupClaimed,
                timeout_s=CLAIM_WAIT_S,
            )
        except NoResponders:
            return True
        except RyzError:  # `take` says what it is
            return False
        return False

    async def take(self) -> None:
        """Takes the name; waits for a leader that has it and is about to end.

        Raises:
            InvalidRequest: Another leader has the name.
            Unavailable: There is no broker.
        """
        subject = subjects.claim(self._claim.group)
        endpoint = Endpoint(self._bus, self._report_bad)
        answer = endpoint.handler(ClaimGroup, self._answer_claim, answers_bad=False)
        self._subscription = await self._bus.subscribe(subject, answer)
        give_up_at = time.monotonic() + LEAVING_WAIT_S
        while True:
            holder = await self._ask(subject)
            if holder is None:
                break
            if holder.state not in LEAVING or time.monotonic() > give_up_at:
                raise self._refusal(holder.instance_id, holder.host, f"its state is {holder.state}")
            log.info("waiting for the leader before", holder=holder.instance_id, state=holder.state)
            await asyncio.sleep(CLAIM_WAIT_S)
        if self._earlier is not None:
            raise self._refusal(self._earlier.instance_id, self._earlier.host, "it starts as well")
        self._taken = True

    async def release(self) -> None:
        """Frees the name; a second call does nothing."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    async def _ask(self, subject: str) -> GroupClaimed | None:
        """Returns the leader that has the name; None if none answers."""
        try:
            return await call(self._bus, subject, self._claim, GroupClaimed, timeout_s=CLAIM_WAIT_S)
        except RequestTimedOut:
            return None

    async def _answer_claim(self, theirs: ClaimGroup, message: Message) -> GroupClaimed | None:
        ours = self._claim
        if theirs.claim_id == ours.claim_id:
            return None
        if not self._taken and (theirs.since_ms, theirs.claim_id) < (ours.since_ms, ours.claim_id):
            self._earlier = theirs
            return None
        if not message.reply:
            return None
        log.warning(
            "another leader asked for this group's name", other=theirs.instance_id, other_host=theirs.host
        )
        return GroupClaimed(
            group=ours.group, instance_id=ours.instance_id, host=ours.host, state=self._state()
        )

    def _report_bad(self, message: Message, error: InvalidRequest) -> None:
        self._repeated.warning("message not decoded", subject=message.subject, error=error.message)

    def _refusal(self, instance_id: str, host: str, why: str) -> InvalidRequest:
        group, where = self._claim.group, host or "unknown"
        return InvalidRequest(
            f"group {group} has a leader already: instance {instance_id} on host {where} ({why}). Two "
            "stacks on one broker need different names: give this one another with "
            "`ryz up --stack NAME` or RYZ_GROUP, or end the other leader first",
            param="group",
        )
