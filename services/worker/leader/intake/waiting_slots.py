"""Admits requests to the waiting slots, displaces others if they have less right to one, ends expired ones.

A request that was admitted before, here or on another group, gets in before the others and beyond the limit
of the queue, up to as many as may run. The queue is bounded all the same.
"""

from collections.abc import Iterator

from services.worker.domain.generation.generation import Generation, request_key
from services.worker.domain.generation.shedding import WaitingRequest, displaced_by
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.leader.context import LeaderContext
from services.worker.leader.fleet.work_gate import WorkGate
from services.worker.leader.request_table import RequestTable
from shared.errors import Cancelled, DeadlineExceeded, Overloaded
from shared.messages import GenerateRequest


class WaitingSlots:
    """The slots of requests that wait.

    Args:
        gate: Refuses work while the group is not ready.
        retry_after_s: When requests without a slot may try again.
    """

    def __init__(
        self, context: LeaderContext, gate: WorkGate, table: RequestTable, retry_after_s: float
    ) -> None:
        self.gate = gate
        self._group = context.group
        self._metrics = context.metrics
        self._clock = context.clock
        self._table = table
        self._retry_after_s = retry_after_s

    def admit(self, request: GenerateRequest, timeout_s: float, *, resumed: bool) -> None:
        """Admits a request, at the cost of others if need be.

        Args:
            timeout_s: Seconds until the request's deadline.
            resumed: See `Generation.resumed`.

        Raises:
            Unavailable: The group takes no work.
            Cancelled: A cancel came before the request.
            DeadlineExceeded: The deadline has passed.
            Overloaded: There is no slot, and no request that may be displaced.
        """
        refusal = self.gate.refusal()
        if refusal is not None:
            raise refusal
        if self._table.was_cancelled(request):
            raise Cancelled("the request was cancelled before it arrived")
        if timeout_s <= 0:
            raise DeadlineExceeded("the request's deadline had passed when it reached the group")
        self._make_room(request, resumed=resumed)

    def _make_room(self, request: GenerateRequest, *, resumed: bool) -> None:
        num_sequences = request.sampling.n
        # what resumed requests hold beyond the limit is not to be made up for by those that displace others
        missing = num_sequences - max(0, self._table.num_free(resumed=resumed))
        if missing <= 0:
            return
        key = request_key(request.tenant, request.request_id)
        newcomer = WaitingRequest(
            key, request.party_or_tenant, request.priority, num_sequences, weight=request.weight
        )
        displaced = displaced_by(newcomer, self.waiting_requests(), missing)
        if not displaced:
            raise Overloaded(
                f"the queue of group {self._group} is full; try again later",
                retry_after_s=self._retry_after_s,
                group=self._group,
            )
        self._metrics.shed_requests.inc(len(displaced))
        for key in displaced:
            generation = self._table.by_key.get(key)
            if generation is not None:
                self._table.fail_request(generation, self._shed())

    def fail_expired(self) -> None:
        """Fails requests whose deadline passed while they were prepared; the engine loop fails the others."""
        now = self._clock()
        for generation in list(self._table.by_key.values()):
            if not generation.started and generation.deadline <= now:
                waited = now - generation.arrived
                error = DeadlineExceeded(
                    f"the deadline passed {waited:.1f} s after the group took the request"
                )
                self._table.fail_request(generation, error)

    def _shed(self) -> Overloaded:
        return Overloaded(
            f"the queue of group {self._group} is full, and the request gave its place to one with more "
            "right to it; try again later",
            reason="shed",
            retry_after_s=self._retry_after_s,
            group=self._group,
        )

    def waiting_requests(self) -> Iterator[WaitingRequest]:
        """Yields the requests that hold waiting slots."""
        for key, generation in self._table.by_key.items():
            request = generation.request
            slots = _slots_of(generation)
            if slots:
                yield WaitingRequest(
                    key,
                    request.party_or_tenant,
                    request.priority,
                    slots,
                    generation.arrived,
                    _is_firm(generation),
                    request.weight,
                )


def _slots_of(generation: Generation) -> int:
    """Returns how many waiting slots a request holds."""
    if not generation.started:
        return generation.request.sampling.n
    return sum(choice.sequence.phase is SequencePhase.WAITING for choice in generation.choices)


def _is_firm(generation: Generation) -> bool:
    """Whether a request has begun, here or on another group."""
    if generation.resumed or generation.first_token_at:
        return True
    return generation.started and any(_was_admitted(choice.sequence) for choice in generation.choices)


def _was_admitted(sequence: Sequence) -> bool:
    return sequence.phase is not SequencePhase.WAITING or sequence.num_preemptions > 0
