"""Puts the frames of one request into order, and decides what to do about what is missing.

Pure: frames, answers and the time come in, frames in order and commands go out. Each frame number is handed
on exactly once; the end comes exactly once. A group that is lost is no end: the next attempt goes on from the
last frame that was handed on (`attempts.py`). What is decided here, `client.py` does.
"""

from collections import deque

from shared.client.generation.attempts import Attempts, RetryBudget
from shared.client.generation.commands import (
    NOTHING,
    AskResend,
    AssemblyStats,
    Command,
    Commands,
    Publish,
    SendCancel,
)
from shared.client.generation.frame_weights import weight_of
from shared.client.generation.reorder_buffer import FrameOrder
from shared.client.generation.retry_schedule import Offers
from shared.client.settings import ClientSettings
from shared.errors import Cancelled, DeadlineExceeded, GroupLost, RequestTooLarge, RyzError, from_code
from shared.messages import (
    Accepted,
    AnyFrame,
    Done,
    Failed,
    ResendReply,
    ResumePoint,
    SessionOutcome,
    Tokens,
    Usage,
)

# What the fleet may say while a stream's group is gone: no place, no group, no model that any group serves
PASSING = frozenset({"unavailable", "overloaded", "model_not_found"})


class Assembly:
    """One request from its first publish to its end.

    ready: the `Tokens` frames in order, for the reader to `take_ready`; at most `max_ready`.
    unread: about how many bytes of memory they take; at most `ClientSettings.max_buffered_bytes`.
    error: why it ended; None with `finished`: it ended well, and `usage` is set, and `session`
        if it was a turn of one.
    group, accepted: of the attempt that counts. interruptions: see `Attempts`.
    """

    __slots__ = (
        "_attempts", "_budget", "_deadline", "_fenced", "_instance", "_offers", "_order", "_reach",
        "_settings", "_stats", "accepted", "error", "finished", "group", "max_ready", "ready", "request_id",
        "session", "unread", "usage",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        attempt: int,
        settings: ClientSettings,
        *,
        now: float,
        deadline: float,
        max_ready: int,
        stats: AssemblyStats,
        num_choices: int = 1,
        resume: ResumePoint | None = None,
        crashes: int = 0,
        budget: RetryBudget | None = None,
    ) -> None:
        self.request_id = request_id
        self.accepted: Accepted | None = None
        self.group = ""
        self.max_ready = max_ready
        self.ready: deque[Tokens] = deque()
        self.unread = 0
        self.finished = False
        self.error: RyzError | None = None
        self.usage = Usage()
        self.session: SessionOutcome | None = None
        self._attempts = Attempts(attempt, num_choices, settings, resume, crashes)
        self._budget = budget or RetryBudget(settings.retries_per_s)
        self._settings = settings
        self._stats = stats
        self._deadline = deadline
        self._order = FrameOrder(settings, resume.next_seq if resume is not None else 0, now)
        self._instance = ""
        self._fenced = -1  # the newest attempt whose late frames were answered with a cancel
        self._reach = 0  # below that number somebody else has handed frames on already
        self._offers = Offers(settings, now)

    @property
    def attempt(self) -> int:
        """The attempt that counts."""
        return self._attempts.number

    @property
    def next_seq(self) -> int:
        """The number of the frame that is to come next."""
        return self._order.next_seq

    @property
    def attempts(self) -> Attempts:
        """What there was of them."""
        return self._attempts

    @property
    def offered_at(self) -> float:
        """When the attempt that counts was published first."""
        return self._offers.since

    @property
    def due(self) -> float:
        """When `tick` has something to do, if nothing arrives until then."""
        if not self.group:
            return min(self._deadline, self._offers.due)
        return self._order.due(self._deadline)

    @property
    def has_gap(self) -> bool:
        """Frames are held back because one before them is missing."""
        return self._order.num_held > 0

    @property
    def behind(self) -> float:
        """How much of what may wait for the reader waits, from 0 to 1."""
        return max(len(self.ready) / self.max_ready, self.unread / self._settings.max_buffered_bytes)

    def take_ready(self) -> Tokens:
        """The first frame that the reader has not taken; there is one."""
        frame = self.ready.popleft()
        self.unread = self.unread - weight_of(frame) if self.ready else 0
        return frame

    def adopt(self, group: str, instance_id: str, first_seq: int, reach: int) -> Commands:
        """The request runs already, and was somebody else's: its frames from `first_seq` on are asked for.

        reach: frames below that number were handed on by the other. They must come as they were, so a loss
        before they are here is an end.
        """
        self.group, self._instance = group, instance_id
        self._order.next_seq, self._reach = first_seq, reach
        self._attempts.accepted = True
        return self._ask()

    def on_frame(self, frame: AnyFrame, group: str, now: float, instance_id: str = "") -> Commands:
        """A frame arrived, from that instance of a group (empty: not said, or a router).

        The first instance that answers an attempt has it: two leaders of one name are as foreign to each
        other as two groups.
        """
        attempt = self._attempts.number
        if frame.attempt != attempt:
            self._stats.ignored += 1
            return self._fence(frame.attempt, group, instance_id) if frame.attempt < attempt else NOTHING
        accepted = isinstance(frame, Accepted)
        if isinstance(frame, Accepted):
            group, instance_id = frame.group, frame.instance_id or instance_id
        # whether another leader than the one that has the request sent it
        foreign = group != self.group or (instance_id != self._instance and instance_id and self._instance)
        foreign = foreign and self.group and group
        if self.finished or foreign:
            # the first group that answers has it; another one, or one that comes too late, is to stop
            self._stats.ignored += 1
            unwanted = accepted and (foreign or not self.group)
            return (SendCancel(group, attempt, instance_id),) if unwanted else NOTHING
        if isinstance(frame, Failed) and not group and frame.seq == 0:
            return self._refused_by_router(frame, now)
        if not self.group and group and not (isinstance(frame, Failed) and frame.seq == self.next_seq):
            self.group, self._instance = group, instance_id  # else it refuses
            self._attempts.accept(now)
        self._order.heard_at = now
        return self._place(frame, now)

    def on_no_responders(self, now: float) -> Commands:
        """No router listens. For the first publish that is the answer; later on one may come back."""
        if self.finished or self.group:
            return NOTHING
        self._offers.no_router = True
        if self._attempts.accepted:
            return self._wait(self._offers.nobody(self.request_id), now)
        if self._offers.count == 1:
            self._fail(self._offers.nobody(self.request_id))
        return NOTHING

    def on_group_down(self, group: str, instance_id: str, reason: str, now: float) -> Commands:
        """A router has given up that instance of a group; another instance of it is none of its business."""
        if self.finished:
            return NOTHING
        if not self.group:
            return self._offer_anew(now)
        theirs = not instance_id or not self._instance or instance_id == self._instance
        if group != self.group or not theirs:
            return NOTHING
        return self._lose(f"routers have given it up ({reason})", reason, now)

    def on_resend(self, reply: ResendReply, now: float) -> Commands:
        """The leader answered `AskResend`."""
        self._order.asking = False
        if self.finished:
            return NOTHING
        if reply.attempt > self._attempts.number:
            self._fail(Cancelled(f"request {self.request_id} goes on elsewhere", reason="attached_elsewhere"))
            return NOTHING
        if not reply.known:
            return self._lose("its leader no longer knows the request", "unknown_request", now)
        return self._take_resent(reply, now)

    def on_resend_failed(self, why: str, now: float) -> Commands:
        """`AskResend` had no answer, or a useless one."""
        self._order.asking = False
        if self.finished or self._order.unanswered(now):
            return NOTHING
        return self._lose(why, "no_answer", now)

    def on_resend_excused(self, now: float) -> None:
        """`AskResend` had no answer, but the broker is away or was a moment ago: nobody is blamed."""
        self._order.asking = False
        self._order.pause(now)

    def cancel(self, message: str = "the caller cancelled the request", **data: str) -> Commands:
        """The caller no longer wants it."""
        if self.finished:
            return NOTHING
        self._fail(Cancelled(message, **data))
        return (SendCancel(self.group, self._attempts.number, self._instance),)

    def tick(self, now: float, *, connected: bool) -> Commands:
        """Time passed."""
        if self.finished:
            return NOTHING
        if now >= self._deadline:
            where = f"in group {self.group}" if self.group else "before a group took it"
            self._fail(DeadlineExceeded(f"request {self.request_id} ran out of time {where}{self._story()}"))
            return (SendCancel(self.group, self._attempts.number, self._instance),)
        if not self.group:
            return self._tick_unaccepted(now, connected)
        if not (self._order.may_ask(now) and self._order.misses(now)):
            return NOTHING
        if not connected:
            self._order.pause(now)
            return NOTHING
        return self._ask()

    def _place(self, frame: AnyFrame, now: float) -> Commands:
        if frame.seq == self.next_seq:
            return self._take_all(frame, now)
        if self._order.knows(frame.seq):
            self._stats.duplicates += 1
            return NOTHING
        self._order.hold(frame)
        if not self.group or not self._order.may_ask(now):
            return NOTHING
        self._stats.gaps += 1
        return self._ask()

    def _take_resent(self, reply: ResendReply, now: float) -> Commands:
        before, attempt = self.next_seq, self._attempts.number
        commands: list[Command] = []
        self._order.asking = True  # gaps inside the answer are dealt with below, once
        for frame in reply.frames:
            commands += self.on_frame(frame, self.group, now, self._instance)
        self._order.asking = False
        self._order.heard_at = now
        if self.finished or self._attempts.number != attempt:
            return tuple(commands)
        missing = reply.next_seq > self.next_seq or self.has_gap
        if not missing or self.next_seq > before:
            self._order.answered()
        if not missing:
            return tuple(commands)
        if self.next_seq > before:  # a long answer comes in parts
            return (*commands, *self._ask())
        return (*commands, *self.on_resend_failed("its leader no longer has the missing frames", now))

    def _tick_unaccepted(self, now: float, connected: bool) -> Commands:
        offers, attempts = self._offers, self._attempts
        if now < offers.due:
            return NOTHING
        if not connected:
            offers.postpone(now)
            return NOTHING
        if offers.exhausted:
            if attempts.accepted:
                return self._wait(offers.nobody(self.request_id), now)
            self._fail(offers.nobody(self.request_id))
            return (SendCancel(""),)
        again = offers.count > 0
        if not offers.again(now, self._budget if attempts.accepted else None):
            return NOTHING
        self._stats.republished += again
        return (self._publish(),)

    def _offer_anew(self, now: float) -> Commands:
        """A group was lost that may have been given the request: there is no need to wait for its word."""
        if not self._offers.anew(now, self._budget):
            return NOTHING
        self._stats.republished += 1
        return (self._publish(),)

    def _take_all(self, frame: AnyFrame | None, now: float) -> Commands:
        """Takes the frame and those behind it that were held."""
        while frame is not None:
            if isinstance(frame, Failed):
                return self._take_failed(frame, now)
            self._take(frame, now)
            frame = self._order.release()
        if len(self.ready) > self.max_ready and not self.finished:
            return self.cancel(
                f"the reader of request {self.request_id} fell {self.max_ready} frames behind; read faster, "
                "or raise RYZ_CLIENT_MAX_BUFFERED_FRAMES",
                reason="slow_reader",
            )
        if self.unread > self._settings.max_buffered_bytes and not self.finished:
            return self._burst()
        self._order.whole()
        return NOTHING

    def _burst(self) -> Commands:
        """The answer takes more memory than one may."""
        self._fail(
            RequestTooLarge(
                f"the unread answer to request {self.request_id} takes more than "
                f"{self._settings.max_buffered_bytes} bytes (RYZ_CLIENT_MAX_BUFFERED_BYTES); ask for fewer "
                "tokens, choices or log probabilities, or stream it and read faster",
                reason="answer_bytes",
            )
        )
        return (SendCancel(self.group, self._attempts.number, self._instance),)

    def _take(self, frame: Accepted | Tokens | Done, now: float) -> None:
        self._order.advance(frame.seq)
        if isinstance(frame, Tokens):
            pause_s = self._attempts.take(frame, now)
            if pause_s:
                self._stats.observe_pause(pause_s)
            self.ready.append(frame)
            self.unread += weight_of(frame)
        elif isinstance(frame, Accepted):
            self.accepted = frame
            self._instance = frame.instance_id or self._instance
            self._attempts.fingerprint = frame.fingerprint
            if frame.session_version >= 0:
                self._attempts.session_version = frame.session_version
        else:
            self.usage, self.session = frame.usage, frame.session
            self.finished = True

    def _take_failed(self, frame: Failed, now: float) -> Commands:
        """The group says that it is over: for the request, or only there."""
        attempts = self._attempts
        if frame.resumable and self.group:
            attempts.crashes += frame.data.get("suspect") is True
            return self._lose(frame.message, str(frame.data.get("reason", frame.code)), now, told=True)
        error = from_code(frame.code, frame.message, frame.data)
        passing = attempts.accepted and frame.code in PASSING and (attempts.losses or not self.group)
        if passing or frame.resumable:
            return self._wait(error, now)
        self._order.advance(frame.seq)
        self._fail(error)
        return NOTHING

    def _refused_by_router(self, frame: Failed, now: float) -> Commands:
        if self.group:  # a router refuses a second copy of what a group has taken
            self._stats.ignored += 1
            return NOTHING
        error = from_code(frame.code, frame.message, frame.data)
        if self._attempts.accepted and frame.code in PASSING:
            return self._wait(error, now)
        self._fail(error)
        return NOTHING

    def _fence(self, attempt: int, group: str, instance_id: str) -> Commands:
        """A group still works on an attempt that was given up: it is told to stop, once."""
        if not group or attempt <= self._fenced:
            return NOTHING
        self._fenced = attempt
        return (SendCancel(group, attempt, instance_id),)

    def _publish(self) -> Publish:
        attempts = self._attempts
        return Publish(attempts.number, attempts.point(self.next_seq), attempts.crashes)

    def _ask(self) -> Commands:
        self._order.asking = True
        self._stats.resends += 1
        return (AskResend(self.group, self.next_seq, self._instance),)

    def _lose(self, why: str, reason: str, now: float, *, told: bool = False) -> Commands:
        """The group is lost to this request, which goes on elsewhere at once. told: by that group itself."""
        group, attempt = self.group, self._attempts.number
        self._stats.lost += 1
        cancel = () if told else (SendCancel(group, attempt, self._instance),)
        if self.next_seq < self._reach or not self._attempts.lose(group, reason, self._order.heard_at, now):
            often = f" ({self._attempts.losses} groups in all)" if self._attempts.losses > 1 else ""
            message = (
                f"group {group} was lost while it ran request {self.request_id}{often}: {why}; "
                "send the request again"
            )
            self._fail(GroupLost(message, group=group, reason=reason))
            return cancel
        self._stats.resumed += 1
        self._begin()
        self._offers.published(now)
        return (*cancel, self._publish())

    def _wait(self, error: RyzError, now: float) -> Commands:
        """Nobody can take the request now: once more, a little later."""
        self._stats.refused += 1
        pause = self._attempts.refuse(error.message)
        if pause is None or (
            not self._attempts.accepted and self._attempts.refusals >= self._settings.max_publishes
        ):
            self._fail(error)
            return NOTHING
        self._begin()
        self._offers.wait(now + pause)
        return NOTHING

    def _begin(self) -> None:
        """A new attempt, which no group has yet."""
        self._order.begin()
        self.group = self._instance = ""

    def _story(self) -> str:
        """What came before an end, in words."""
        if not self._attempts.interruptions:
            return ""
        last = self._attempts.interruptions[-1]
        return f", after group {last.group} was lost ({last.reason})"

    def _fail(self, error: RyzError) -> None:
        self.error = error
        self.finished = True
        self._order.drop()
