"""The state machine of one request, from its first publish to its end. Pure.

Frames, answers and the time go in; frames in order and commands come out. Each frame number is handed on
exactly once, and the request ends exactly once. The loss of a group starts the next attempt, which goes on
behind the last frame that was handed on. `CommandExecutor` carries the commands out.
"""

from shared.client.generation import endings
from shared.client.generation.attempts import Attempts
from shared.client.generation.client_context import ClientContext
from shared.client.generation.commands import NOTHING, Command, Commands
from shared.client.generation.frames.answer_buffer import AnswerBuffer
from shared.client.generation.frames.reorder_buffer import ReorderBuffer
from shared.client.generation.request_lifecycle import GenerationPhase, RequestLifecycle
from shared.errors import Cancelled, RyzError, Unavailable
from shared.messages import Accepted, AnyFrame, Done, Failed, GenerateRequest, ResendReply, Tokens


class GenerationState:
    """One request.

    Attributes:
        lifecycle: The phase of the request, its attempts, its leader and its error.
        answer: The frames for the reader, and what came with the end.
        observed: Measures the request.
    """

    __slots__ = (
        "_buffer", "_context", "_deadline", "_heard_at", "answer", "lifecycle", "observed", "request_id",
    )  # fmt: skip

    def __init__(
        self, request: GenerateRequest, context: ClientContext, *, now: float, deadline: float, max_ready: int
    ) -> None:
        """Starts in phase `OFFERED`: the caller publishes the request now.

        Args:
            request: What is generated.
            context: Shared by the requests of the client.
            now: Seconds on the client's clock.
            deadline: When the request ends at the latest.
            max_ready: Frames that may wait for the reader.
        """
        self.request_id = request.request_id
        self.answer = AnswerBuffer(context.settings, max_ready)
        self._context = context
        self._deadline = deadline
        self._buffer = ReorderBuffer(context.settings, request.resume.next_seq if request.resume else 0)
        self._heard_at = now  # the last frame or answer of the leader
        self.lifecycle = RequestLifecycle(request, context, self._buffer, now=now, deadline=deadline)
        self.observed = context.stats.observer.begin(request, now)

    @property
    def phase(self) -> GenerationPhase:
        """Where the request stands."""
        return self.lifecycle.phase

    @property
    def finished(self) -> bool:
        """The request has ended, well or with an error."""
        return self.lifecycle.phase is GenerationPhase.ENDED

    @property
    def error(self) -> RyzError | None:
        """Why it ended; None with `finished`: it ended well."""
        return self.lifecycle.error

    @property
    def group(self) -> str:
        """The group that has the request, or had it when it ended; empty while none has."""
        return self.lifecycle.leader.group

    @property
    def attempts(self) -> Attempts:
        """The attempts so far."""
        return self.lifecycle.attempts

    @property
    def next_seq(self) -> int:
        """The number of the next frame in order."""
        return self._buffer.next_seq

    @property
    def num_held(self) -> int:
        """Frames that are held back because one before them is missing."""
        return self._buffer.num_held

    @property
    def offered_at(self) -> float:
        """When the current attempt was published first."""
        return self.lifecycle.offered_at

    @property
    def due(self) -> float:
        """When `tick` has something to do, if nothing arrives until then."""
        if self.phase is GenerationPhase.RUNNING:
            return self._buffer.due(self._heard_at, self._deadline)
        return min(self._deadline, self.lifecycle.offer_due)

    def adopt(self, group: str, instance_id: str, first_seq: int, needed_seq: int) -> Commands:
        """Take over a request that another caller has published and that a group runs.

        Its frames from `first_seq` on are asked for. Those below `needed_seq` were shown by the other caller
        and have to come as they were, so a loss of the group before them ends the request.
        """
        self.observed.adopt()
        self._buffer.start_at(first_seq)
        self.lifecycle.adopt(group, instance_id, needed_seq, self._heard_at)
        return self._ask_resend()

    def on_frame(self, frame: AnyFrame, group: str, now: float, instance_id: str = "") -> Commands:
        """A frame arrived from that instance of a group; both are empty for a router, or if not said.

        The first instance that answers an attempt has the request. Another leader of the same name counts as
        another group.
        """
        life, is_next = self.lifecycle, frame.seq == self._buffer.next_seq
        if frame.attempt != life.attempts.number:
            return self._on_other_attempt(frame, group, instance_id)
        if isinstance(frame, Accepted):
            group, instance_id = frame.group, frame.instance_id or instance_id
        if life.phase is GenerationPhase.RUNNING:
            if life.leader.is_other(group, instance_id):
                return self._ignore(frame, group, instance_id)
            if not group and isinstance(frame, Failed) and frame.seq == 0:
                return self._ignore(frame)  # a router refuses a second copy of the request
        elif life.phase is GenerationPhase.ENDED:
            return self._ignore(frame, group if life.leader.is_other(group, instance_id) else "", instance_id)
        elif not group:
            if isinstance(frame, Failed) and frame.seq == 0:
                return life.on_refusal(frame, now)
        elif not (isinstance(frame, Failed) and is_next):
            life.assign_leader(group, instance_id, now)
        self._heard_at = now
        return self._take_in_order(frame, now) if is_next else self._hold_early(frame, now)

    def on_no_responders(self, now: float) -> Commands:
        """No router listens."""
        if self.phase in {GenerationPhase.RUNNING, GenerationPhase.ENDED}:
            return NOTHING
        return self.lifecycle.on_no_responders(now)

    def wait_for_broker(self, error: Unavailable, now: float) -> bool:
        """The request could not be published for the first time; False if it may not wait, and has ended."""
        self.lifecycle.pause(error, now)
        return not self.finished

    def on_group_down(self, group: str, instance_id: str, reason: str, now: float) -> Commands:
        """A router has given up that instance of a group; empty: all of its instances."""
        life = self.lifecycle
        if life.phase is not GenerationPhase.RUNNING:
            return life.publish_early(now)
        if not life.leader.is_meant(group, instance_id):
            return NOTHING
        return self._lose_leader(f"routers have given it up ({reason})", reason, now)

    def on_resend(self, reply: ResendReply, now: float) -> Commands:
        """The leader answered `AskResend`."""
        self._buffer.stop_asking()
        if self.finished:
            return NOTHING
        if reply.attempt > self.attempts.number:
            self.lifecycle.end(endings.attached_elsewhere(self.request_id))
            return NOTHING
        if not reply.known:
            return self._lose_leader("its leader no longer knows the request", "unknown_request", now)
        return self._take_resent(reply, now)

    def on_resend_failed(self, why: str, now: float, *, late: bool = False) -> Commands:
        """`AskResend` had no answer, or a useless one.

        Args:
            why: What happened.
            now: Seconds on the client's clock.
            late: No answer came in time. If the leader was heard lately it is slow, and that is no failure.
        """
        self._buffer.stop_asking()
        leader, since = self.lifecycle.leader, now - self._context.settings.constants.patience_s
        if late and (self._heard_at > since or self._context.heard.heard_since(leader.instance_id, since)):
            self._buffer.postpone_question(now)
            return NOTHING
        if self.finished or self._buffer.count_unanswered(now):
            return NOTHING
        return self._lose_leader(why, "no_answer", now)

    def on_resend_excused(self, now: float) -> None:
        """`AskResend` had no answer, but the broker is away or was a moment ago: it counts as no failure."""
        self._buffer.stop_asking()
        self._buffer.postpone_question(now)

    def cancel(self, message: str = "the caller cancelled the request", **data: str) -> Commands:
        """The caller no longer wants it."""
        return NOTHING if self.finished else self.lifecycle.end_and_cancel(Cancelled(message, **data))

    def tick(self, now: float, *, connected: bool) -> Commands:
        """Time passed; `connected`: the broker can be reached."""
        if self.finished:
            return NOTHING
        if now >= self._deadline:
            return self._end_late(now)
        if self.phase is not GenerationPhase.RUNNING:
            return self.lifecycle.tick_offer(now, connected)
        if not self._buffer.must_ask(now, self._heard_at):
            return NOTHING
        if not connected:
            self._buffer.postpone_question(now)
            return NOTHING
        return self._ask_resend()

    def _end_late(self, now: float) -> Commands:
        """The deadline has passed; for a request that no group has begun that is the end of its wait."""
        if self.lifecycle.wait.active:
            return self.lifecycle.end_wait(now)
        error = endings.out_of_time(self.request_id, self.group, self.attempts.interruptions)
        return self.lifecycle.end_and_cancel(error)

    def _take_in_order(self, first: AnyFrame, now: float) -> Commands:
        """Take the next frame, and those behind it that were held."""
        fits = True
        frame: AnyFrame | None = first
        while frame is not None:
            if isinstance(frame, Tokens):
                self.observed.add_tokens(now)
                pause_s = self.lifecycle.attempts.add_tokens(frame, now)
                if pause_s:
                    self._context.stats.observe_pause(pause_s)
                fits = self.answer.add_tokens(frame)
            elif isinstance(frame, Failed):
                return self._on_failed(frame, now)
            elif isinstance(frame, Accepted):
                self._on_accepted(frame)
            else:
                self._buffer.end_at(frame.seq)
                self.answer.set_end(frame)
                self.lifecycle.end_well()
                return NOTHING
            frame = self._buffer.advance_past(frame.seq)
        return NOTHING if fits else self.lifecycle.end_and_cancel(self.answer.overflow(self.request_id))

    def _hold_early(self, frame: AnyFrame, now: float) -> Commands:
        """Keep a frame that came too early, and ask for those before it."""
        if not self._buffer.hold(frame):
            self._context.stats.duplicates += 1
            return NOTHING
        if self.phase is not GenerationPhase.RUNNING or not self._buffer.may_ask(now):
            return NOTHING
        self._context.stats.gaps += 1
        return self._ask_resend()

    def _take_resent(self, reply: ResendReply, now: float) -> Commands:
        before, attempt, leader = self.next_seq, self.attempts.number, self.lifecycle.leader
        commands: list[Command] = []
        self._buffer.start_asking()  # gaps inside the answer are asked about below, once
        for frame in reply.frames:
            commands += self.on_frame(frame, leader.group, now, leader.instance_id)
        self._buffer.stop_asking()
        self._heard_at = now
        if self.finished or self.attempts.number != attempt:
            return tuple(commands)
        missing = reply.next_seq > self.next_seq or self.num_held > 0
        if not missing or self.next_seq > before:
            self._buffer.count_answer()
        if not missing:
            return tuple(commands)
        if self.next_seq > before:  # a long answer comes in parts
            return (*commands, *self._ask_resend())
        return (*commands, *self.on_resend_failed("its leader no longer has the missing frames", now))

    def _ask_resend(self) -> Commands:
        self._buffer.start_asking()
        self._context.stats.resends += 1
        return (self.lifecycle.leader.ask_resend(self.next_seq),)

    def _on_other_attempt(self, frame: AnyFrame, group: str, instance_id: str) -> Commands:
        self._context.stats.ignored += 1
        if frame.attempt > self.attempts.number:
            return NOTHING
        return self.lifecycle.leader.fence(frame.attempt, group, instance_id)

    def _ignore(self, frame: AnyFrame, group: str = "", instance_id: str = "") -> Commands:
        """Leave a frame out; a group that is named and works on the request gets a cancel."""
        self._context.stats.ignored += 1
        if isinstance(frame, Done | Failed):
            return NOTHING
        return self.lifecycle.leader.fence(frame.attempt, group, instance_id)

    def _on_accepted(self, frame: Accepted) -> None:
        self.answer.set_accepted(frame)
        self.attempts.note_accepted(frame)
        if frame.instance_id:
            self.lifecycle.leader.set_instance(frame.instance_id)

    def _on_failed(self, frame: Failed, now: float) -> Commands:
        commands = self.lifecycle.on_failed(frame, self._heard_at, now)
        if self.finished:
            self.answer.last_usage = frame.usage
        return commands

    def _lose_leader(self, why: str, reason: str, now: float) -> Commands:
        return self.lifecycle.lose_leader(why, reason, self._heard_at, now)
