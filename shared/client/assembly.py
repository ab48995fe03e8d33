"""Puts the frames of one request into order, and decides what to do about what is missing.

Pure: frames, answers and the time come in, frames in order and commands go out. Each frame number is handed
on exactly once; the end comes exactly once. What it decides, `client.py` does.
"""

from collections import deque
from dataclasses import dataclass

from shared.client.settings import ClientSettings
from shared.errors import Cancelled, DeadlineExceeded, GroupLost, RyzError, Unavailable, from_code
from shared.messages import Accepted, AnyFrame, Done, Failed, ResendReply, Tokens, Usage

MAX_ACCEPT_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the request (again)."""


@dataclass(frozen=True, slots=True)
class AskResend:
    """Ask the group's leader for the frames from a number on."""

    group: str
    from_seq: int


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Tell a group, or every group when it is empty, that the answer is no longer wanted."""

    group: str


Command = Publish | AskResend | SendCancel
Commands = tuple[Command, ...]
NOTHING: Commands = ()


@dataclass(slots=True)
class AssemblyStats:
    """What went wrong with frames, over all requests of a client."""

    republished: int = 0
    gaps: int = 0
    resends: int = 0
    duplicates: int = 0
    ignored: int = 0


class Assembly:
    """One request from its first publish to its end.

    ready: the `Tokens` frames in order, for the reader to take away; at most `max_ready`.
    error: why it ended; None with `finished`: it ended well, and `usage` is set.
    """

    __slots__ = (
        "_asking", "_attempt", "_deadline", "_held", "_last_heard", "_no_router", "_publish_at",
        "_publishes", "_retry_at", "_settings", "_stats", "_tries", "accepted", "error", "finished", "group",
        "max_ready", "next_seq", "ready", "request_id", "usage",
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
    ) -> None:
        self.request_id = request_id
        self.accepted: Accepted | None = None
        self.group = ""
        self.next_seq = 0
        self.max_ready = max_ready
        self.ready: deque[Tokens] = deque()
        self.finished = False
        self.error: RyzError | None = None
        self.usage = Usage()
        self._attempt = attempt
        self._settings = settings
        self._stats = stats
        self._deadline = deadline
        self._held: dict[int, AnyFrame] = {}
        self._last_heard = now
        self._publishes = 1
        self._publish_at = now + settings.accept_timeout_s
        self._no_router = False
        self._asking = False
        self._tries = 0
        self._retry_at = 0.0

    @property
    def due(self) -> float:
        """When `tick` has something to do, if nothing arrives until then."""
        if not self.group:
            return min(self._deadline, self._publish_at)
        if self._asking:
            return self._deadline
        patience = 0.0 if self._held or self._tries else self._settings.probe_interval_s
        return min(self._deadline, max(self._retry_at, self._last_heard + patience))

    @property
    def has_gap(self) -> bool:
        """Frames are held back because one before them is missing."""
        return bool(self._held)

    def on_frame(self, frame: AnyFrame, group: str, now: float) -> Commands:
        """A frame arrived, from that group (empty: not said, or a router)."""
        if frame.attempt != self._attempt:
            self._stats.ignored += 1
            return NOTHING
        accepted = isinstance(frame, Accepted)
        group = frame.group if isinstance(frame, Accepted) else group
        if self.finished or (self.group and group and group != self.group):
            # the first group that answers has it; another one, or one that comes too late, is to stop
            self._stats.ignored += 1
            return (SendCancel(group),) if accepted and group != self.group else NOTHING
        if isinstance(frame, Failed) and frame.seq == 0 and self.group and not group:
            self._stats.ignored += 1  # a router refuses a second copy of what a group has taken
            return NOTHING
        self.group = self.group or group
        self._last_heard = now
        return self._place(frame, now)

    def on_no_responders(self) -> Commands:
        """No router listens. For the first publish that is the answer; later on one may come back."""
        if self.finished or self.group:
            return NOTHING
        self._no_router = True
        if self._publishes == 1:
            self._fail(self._not_taken())
        return NOTHING

    def on_resend(self, reply: ResendReply, now: float) -> Commands:
        """The leader answered `AskResend`."""
        self._asking = False
        if self.finished:
            return NOTHING
        if not reply.known:
            return self._lose("its leader no longer knows the request", "unknown_request")
        return self._take_resent(reply, now)

    def on_resend_failed(self, why: str, now: float) -> Commands:
        """`AskResend` had no answer, or a useless one."""
        self._asking = False
        if self.finished:
            return NOTHING
        self._tries += 1
        if self._tries >= self._settings.resend_attempts:
            return self._lose(why, "no_answer")
        self._retry_at = now + self._settings.resend_timeout_s / 2
        return NOTHING

    def on_resend_excused(self, now: float) -> None:
        """`AskResend` had no answer, but the broker is away or was a moment ago: nobody is blamed."""
        self._asking = False
        self._retry_at = now + self._settings.resend_timeout_s / 2

    def cancel(self, message: str = "the caller cancelled the request", **data: str) -> Commands:
        """The caller no longer wants it."""
        if self.finished:
            return NOTHING
        self._fail(Cancelled(message, **data))
        return (SendCancel(self.group),)

    def tick(self, now: float, *, connected: bool) -> Commands:
        """Time passed."""
        if self.finished:
            return NOTHING
        if now >= self._deadline:
            where = f"in group {self.group}" if self.group else "before a group took it"
            self._fail(DeadlineExceeded(f"request {self.request_id} ran out of time {where}"))
            return (SendCancel(self.group),)
        if not self.group:
            return self._tick_unaccepted(now, connected)
        silent = now - self._last_heard >= self._settings.probe_interval_s
        missing = silent or bool(self._held) or self._tries > 0
        if self._asking or now < self._retry_at or not missing:
            return NOTHING
        if not connected:
            self._retry_at = now + self._settings.resend_timeout_s / 2
            return NOTHING
        return self._ask()

    def _place(self, frame: AnyFrame, now: float) -> Commands:
        seq = frame.seq
        if seq == self.next_seq:
            return self._take_all(frame)
        if seq < self.next_seq or seq in self._held:
            self._stats.duplicates += 1
            return NOTHING
        if len(self._held) < self._settings.max_buffered_frames:
            self._held[seq] = frame
        if not self.group or self._asking or now < self._retry_at:
            return NOTHING
        self._stats.gaps += 1
        return self._ask()

    def _take_resent(self, reply: ResendReply, now: float) -> Commands:
        before = self.next_seq
        commands: list[Command] = []
        self._asking = True  # gaps inside the answer are dealt with below, once
        for frame in reply.frames:
            commands += self.on_frame(frame, self.group, now)
        self._asking = False
        self._last_heard = now
        if self.finished:
            return tuple(commands)
        missing = reply.next_seq > self.next_seq or bool(self._held)
        if not missing:
            self._tries = 0
            return tuple(commands)
        if self.next_seq > before:  # a long answer comes in parts
            self._tries = 0
            return (*commands, *self._ask())
        return (*commands, *self.on_resend_failed("its leader no longer has the missing frames", now))

    def _tick_unaccepted(self, now: float, connected: bool) -> Commands:
        if now < self._publish_at:
            return NOTHING
        pause = self._settings.accept_timeout_s * 2.0**self._publishes
        self._publish_at = now + min(pause, MAX_ACCEPT_PAUSE_S)
        if not connected:
            return NOTHING
        if self._publishes >= self._settings.max_publishes:
            self._fail(self._not_taken())
            return (SendCancel(""),)
        self._publishes += 1
        self._stats.republished += 1
        return (Publish(),)

    def _take_all(self, frame: AnyFrame | None) -> Commands:
        """Takes the frame and those behind it that were held."""
        while frame is not None:
            self._take(frame)
            frame = self._held.pop(self.next_seq, None) if self._held else None
        if len(self.ready) > self.max_ready and not self.finished:
            return self.cancel(
                f"the reader of request {self.request_id} fell {self.max_ready} frames behind; read faster, "
                "or raise RYZ_CLIENT_MAX_BUFFERED_FRAMES",
                reason="slow_reader",
            )
        if not self._held:
            self._tries = 0
        return NOTHING

    def _take(self, frame: AnyFrame) -> None:
        self.next_seq = frame.seq + 1
        if isinstance(frame, Tokens):
            self.ready.append(frame)
        elif isinstance(frame, Accepted):
            self.accepted = frame
        elif isinstance(frame, Done):
            self.usage = frame.usage
            self.finished = True
        else:
            self._fail(from_code(frame.code, frame.message, frame.data))

    def _ask(self) -> Commands:
        self._asking = True
        self._stats.resends += 1
        return (AskResend(self.group, self.next_seq),)

    def _lose(self, why: str, reason: str) -> Commands:
        group = self.group
        message = (
            f"group {group} was lost while it ran request {self.request_id}: {why}; send the request again"
        )
        self._fail(GroupLost(message, group=group, reason=reason))
        return (SendCancel(group),)

    def _not_taken(self) -> Unavailable:
        if self._no_router:
            return Unavailable("no router is running; start one, or try again shortly", reason="no_router")
        return Unavailable(
            f"no group took request {self.request_id}, which was published {self._publishes} times",
            reason="no_answer",
        )

    def _fail(self, error: RyzError) -> None:
        self.error = error
        self.finished = True
        self._held.clear()
