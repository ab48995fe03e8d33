"""Waiting places: who gets one, who has to give his up, and who has waited for too long before it was ready.

A request that was admitted once, on this group or another, gets in before the others and beyond the limit of
the queue, up to as many as may run. What the queue holds is bounded all the same.
"""

from collections.abc import Iterator

from services.worker.domain.generation.request import Generation, request_key
from services.worker.domain.generation.shedding import WaitingRequest, displaced_by
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.leader.request_table import RequestTable
from services.worker.metrics import WorkerMetrics
from shared.errors import DeadlineExceeded, Overloaded
from shared.messages import GenerateRequest


class WaitingPlaces:
    """retry_after_s: what those are told for whom there is no place."""

    def __init__(
        self, group: str, generations: RequestTable, metrics: WorkerMetrics, retry_after_s: float
    ) -> None:
        self._group = group
        self._generations = generations
        self._metrics = metrics
        self._retry_after_s = retry_after_s

    def make_room(self, request: GenerateRequest, *, resumed: bool) -> None:
        """Sees to it that there is room for a request, at the cost of others if need be.

        resumed: see `Generation.resumed`.

        Raises `Overloaded` if there is none, and nobody who has to give way.
        """
        num_sequences = request.sampling.n
        # what resumed requests hold beyond the limit is not to be made up for by those that displace others
        missing = num_sequences - max(0, self._generations.num_free(resumed=resumed))
        if missing <= 0:
            return
        key = request_key(request.tenant, request.request_id)
        newcomer = WaitingRequest(key, request.tenant, request.priority, num_sequences)
        displaced = displaced_by(newcomer, self._waiting(), missing)
        if not displaced:
            raise Overloaded(
                f"the queue of group {self._group} is full; try again later",
                retry_after_s=self._retry_after_s,
                group=self._group,
            )
        self._metrics.shed_requests.inc(len(displaced))
        for key in displaced:
            generation = self._generations.by_id.get(key)
            if generation is not None:
                self._generations.fail(generation, self._shed())

    def expire(self) -> None:
        """Ends requests whose deadline passed while they were prepared; the scheduler sees to the others."""
        now = self._generations.clock()
        for generation in list(self._generations.by_id.values()):
            if not generation.started and generation.deadline <= now:
                waited = now - generation.arrived
                error = DeadlineExceeded(
                    f"the deadline passed {waited:.1f} s after the group took the request"
                )
                self._generations.fail(generation, error)

    def _shed(self) -> Overloaded:
        return Overloaded(
            f"the queue of group {self._group} is full, and the request gave its place to one with more "
            "right to it; try again later",
            reason="shed",
            retry_after_s=self._retry_after_s,
            group=self._group,
        )

    def _waiting(self) -> Iterator[WaitingRequest]:
        for key, generation in self._generations.by_id.items():
            request = generation.request
            places = _places(generation)
            if places:
                yield WaitingRequest(
                    key,
                    request.tenant,
                    request.priority,
                    places,
                    generation.arrived,
                    _is_firm(generation),
                )


def _places(generation: Generation) -> int:
    """How many waiting places a request holds."""
    if not generation.started:
        return generation.request.sampling.n
    return sum(choice.sequence.phase is SequencePhase.WAITING for choice in generation.choices)


def _is_firm(generation: Generation) -> bool:
    """Whether a request has begun, here or before it came here."""
    if generation.resumed or generation.first_token_at:
        return True
    return generation.started and any(_was_admitted(choice.sequence) for choice in generation.choices)


def _was_admitted(sequence: Sequence) -> bool:
    return sequence.phase is not SequencePhase.WAITING or sequence.num_preemptions > 0
