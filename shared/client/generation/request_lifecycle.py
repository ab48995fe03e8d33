"""The phases of a request at the client, and the transitions between them. Pure."""

from enum import Enum, auto

from shared.client.generation import endings
from shared.client.generation.assigned_leader import AssignedLeader
from shared.client.generation.attempts import Attempts
from shared.client.generation.client_context import ClientContext
from shared.client.generation.commands import NOTHING, Commands, Publish, SendCancel
from shared.client.generation.frames.reorder_buffer import ReorderBuffer
from shared.client.generation.retry_schedule import FINAL_REASONS, PublishDecision, RequestWait, RetrySchedule
from shared.errors import RyzError, from_code
from shared.messages import Failed, GenerateRequest

# Error codes that may pass while a request waits for another group.
PASSING = frozenset({"unavailable", "overloaded", "model_not_found"})


class GenerationPhase(Enum):
    """Where a request stands.

    The usual order is `OFFERED`, `RUNNING`, `ENDED`. A refusal leads from `OFFERED` to `PAUSED`, the end of
    the pause back to `OFFERED`. The loss of a group leads from `RUNNING` to `OFFERED`. Each phase may lead to
    `ENDED`.
    """

    OFFERED = auto()  # the attempt is published, and no group has answered
    PAUSED = auto()  # no group could take it; the next attempt is published when the pause is over
    RUNNING = auto()  # a group has it
    ENDED = auto()  # well, or with an error


class RequestLifecycle:
    """The phase of one request, its attempts, and who has it.

    Attributes:
        phase: Where the request stands.
        leader: The leader that has the request, or had it when it ended.
        attempts: The attempts so far.
        error: Why it ended; None in phase `ENDED`: it ended well.
        was_cancelled: This client ended it, and has sent a cancel.
        wait: Whether it waits for a group to begin it.
    """

    __slots__ = (
        "_buffer", "_context", "_needed_seq", "_request_id", "_retries", "_started_at",
        "attempts", "error", "leader", "phase", "wait", "was_cancelled",
    )  # fmt: skip

    def __init__(
        self,
        request: GenerateRequest,
        context: ClientContext,
        buffer: ReorderBuffer,
        *,
        now: float,
        deadline: float,
    ) -> None:
        """Starts in phase `OFFERED`: the caller publishes the request now.

        Args:
            request: What is generated.
            context: Shared by the requests of the client.
            buffer: Says which frames came, and is emptied between attempts.
            now: Seconds on the client's clock.
            deadline: When the request ends at the latest.
        """
        self.phase = GenerationPhase.OFFERED
        self.leader = AssignedLeader()
        self.attempts = Attempts(request, context.settings)
        self.error: RyzError | None = None
        self.was_cancelled = False
        self.wait = RequestWait(request, context, now=now, deadline=deadline)
        self._request_id = request.request_id
        self._context = context
        self._buffer = buffer
        self._retries = RetrySchedule(context.settings, now)
        self._started_at = now
        self._needed_seq = 0  # a loss of the leader before this frame number is an end

    @property
    def offered_at(self) -> float:
        """When the current attempt was published first."""
        return self._retries.published_at

    @property
    def offer_due(self) -> float:
        """When `tick_offer` has something to do."""
        due = self._retries.due
        return min(due, self.wait.until) if self.wait.active else due

    def adopt(self, group: str, instance_id: str, needed_seq: int, now: float) -> None:
        """A leader runs the request, whose frames below `needed_seq` were shown elsewhere."""
        self.assign_leader(group, instance_id, now)
        self._needed_seq = needed_seq

    def assign_leader(self, group: str, instance_id: str, now: float) -> None:
        """A leader has answered."""
        self.phase = GenerationPhase.RUNNING
        self.leader.assign(group, instance_id)
        self.attempts.note_group(now)
        self.wait.stop()

    def on_no_responders(self, now: float) -> Commands:
        """No router listens; one may come back."""
        if self.phase is GenerationPhase.PAUSED:
            return NOTHING
        self._retries.note_no_router()
        return self.pause(self._unanswered(), now)

    def publish_early(self, now: float) -> Commands:
        """Publish before it is time, because the group that was chosen may be lost; `PAUSED` goes on."""
        if self.phase is not GenerationPhase.OFFERED or not self._retries.try_publish_early(
            now, self._context.budget
        ):
            return NOTHING
        self._context.stats.republished += 1
        return (self._publish(),)

    def tick_offer(self, now: float, connected: bool) -> Commands:
        """Publish (again) if it is time, and if the attempt has publishes left."""
        wait = self.wait
        if wait.active and now >= wait.until:
            return self.end_wait(now)
        limited = self.attempts.accepted or wait.wakes or self._retries.will_ask_all
        budget = self._context.budget if limited else None
        decision = self._retries.decide(now, budget, connected=connected)
        if decision is PublishDecision.WAIT:
            return NOTHING
        if decision is PublishDecision.PUBLISH:
            self._context.stats.republished += self.phase is GenerationPhase.OFFERED
            self.phase = GenerationPhase.OFFERED
            return (self._publish(),)
        self.pause(self._unanswered(), now)
        return (SendCancel(""),) if self.error is not None else NOTHING

    def lose_leader(
        self, why: str, reason: str, heard_at: float, now: float, *, reported: bool = False
    ) -> Commands:
        """The leader is lost to this request, which goes on elsewhere at once if it may.

        Args:
            why: What happened, for the error's message.
            reason: The same in a word.
            heard_at: Its last frame or answer.
            now: Seconds on the client's clock.
            reported: It has said so itself, and needs no cancel.
        """
        attempts, group, heard = self.attempts, self.leader.group, self._context.heard
        self._context.stats.lost += 1
        cancel = () if reported else (self.leader.cancel(attempts.number),)
        shown_in_part = self._buffer.next_seq < self._needed_seq
        if shown_in_part or not attempts.count_loss(self.leader, reason, heard_at, now, heard):
            self.end(endings.group_lost(self._request_id, group, why, reason, attempts.losses))
            return cancel
        self._context.stats.resumed += 1
        self._start_attempt(GenerationPhase.OFFERED)
        self._retries.start_published(now)
        return (*cancel, self._publish())

    def on_refusal(self, frame: Failed, now: float) -> Commands:
        """A router refuses the request."""
        error = from_code(frame.code, frame.message, frame.data)
        if frame.code == "unavailable" or (self.attempts.accepted and frame.code in PASSING):
            return self.pause(error, now)
        self.end(error)
        return NOTHING

    def on_failed(self, frame: Failed, heard_at: float, now: float) -> Commands:
        """A group has given the request up, for good or so that another one can go on.

        Args:
            frame: The group's last frame.
            heard_at: Its last frame or answer.
            now: Seconds on the client's clock.
        """
        attempts, running = self.attempts, self.phase is GenerationPhase.RUNNING
        if frame.resumable and running:
            if frame.data.get("suspect") is True:
                attempts.count_crash()
            reason = str(frame.data.get("reason", frame.code))
            return self.lose_leader(frame.message, reason, heard_at, now, reported=True)
        error = from_code(frame.code, frame.message, frame.data)
        passing = attempts.accepted and frame.code in PASSING and (attempts.losses or not running)
        if passing or frame.resumable:
            return self.pause(error, now, handed_back=True)
        self._buffer.end_at(frame.seq)
        self.end(error)
        return NOTHING

    def pause(self, error: RyzError, now: float, *, handed_back: bool = False) -> Commands:
        """The fleet cannot take the request now: offer it again a little later, or end with `error`.

        Args:
            error: The refusal.
            now: Seconds on the client's clock.
            handed_back: A group had this attempt, and refuses it if it comes again.
        """
        self._context.stats.refused += 1
        self.wait.note_refusal(error, now)
        pause_s = self.attempts.count_refusal(error, self.wait.longest_pause_s)
        if not self._may_try_again(error, now):
            waited_s = now - self._started_at
            self.end(endings.waited_in_vain(error, waited_s) if self.wait.active else error)
            return NOTHING
        if not self.attempts.accepted and error.code == "unavailable" and not self.wait.try_start():
            self.end(endings.too_many_wait(error))
            return NOTHING
        # a new request that no group has seen keeps its number: groups prefer those that others have begun;
        # one that waits for a model that loads would use the numbers up
        seen = handed_back or (self.attempts.accepted and not self.wait.wakes)
        if seen and not self.attempts.advance():
            self.end(error)
            return NOTHING
        self._start_attempt(GenerationPhase.PAUSED)
        self._retries.start_paused(now + pause_s)
        return NOTHING

    def _may_try_again(self, error: RyzError, now: float) -> bool:
        """Whether a refused request is offered again; a new one waits for what is away, within bounds."""
        if error.data.get("reason") in FINAL_REASONS:
            return False
        if self.attempts.accepted:
            return True
        if error.code != "unavailable":
            return self.attempts.refusals < self._context.settings.constants.max_publishes
        return not self.wait.is_over(error, now)

    def end_wait(self, now: float) -> Commands:
        """The time is over for a request that no group has begun; one may still get it from a slow router."""
        unanswered = self.phase is GenerationPhase.OFFERED
        refusal = self.attempts.refusal
        error = self._unanswered() if unanswered or refusal is None else refusal
        self.end(endings.waited_in_vain(error, now - self._started_at))
        return (SendCancel(""),)

    def end_well(self) -> None:
        """The leader has sent everything."""
        self.phase = GenerationPhase.ENDED
        self.wait.stop()

    def end_and_cancel(self, error: RyzError) -> Commands:
        """End the request with an error, and cancel it at its leader."""
        self.end(error)
        self.was_cancelled = True
        return (self.leader.cancel(self.attempts.number),)

    def end(self, error: RyzError) -> None:
        """End the request with an error."""
        self.error = error
        self.phase = GenerationPhase.ENDED
        self._buffer.drop_held()
        self._context.stats.waits_failed += self.wait.active and error.code == "unavailable"
        self.wait.stop()

    def _start_attempt(self, phase: GenerationPhase) -> None:
        self.phase = phase
        self.leader.assign("", "")
        self._buffer.start_attempt()

    def _publish(self) -> Publish:
        attempts, retries = self.attempts, self._retries
        resume = attempts.resume_point(self._buffer.next_seq)
        repeats = attempts.repeats if retries.num_publishes == 1 else 0
        return Publish(attempts.number, resume, attempts.crashes, retries.asks_all, repeats)

    def _unanswered(self) -> RyzError:
        retries = self._retries
        return endings.unanswered(self._request_id, retries.num_publishes, no_router=retries.no_router)
