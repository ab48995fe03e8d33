"""The commands that a `GenerationState` returns, and the counters that it keeps.

The state is pure. `CommandExecutor` carries the commands out.

`RequestObserver`: the port to what measures the requests of a client: times of tokens, and how requests end.

Services measure with `shared/telemetry/service_levels.py`; other callers measure nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shared.errors import RyzError
from shared.messages import GenerateRequest, ResumePoint, Usage
from shared.messages.base import MAX_ATTEMPT


class ObservedRequest(Protocol):
    """One request; its methods are called on the client's event loop and return at once."""

    def add_tokens(self, now: float) -> None:
        """The next tokens came, on the client's clock in seconds."""
        ...

    def adopt(self) -> None:
        """The request was begun by another caller: its times before now are not known."""
        ...

    def end(self, now: float, error: RyzError | None, usage: Usage) -> None:
        """The request has ended, with an error or well; called once at most."""
        ...


class RequestObserver(Protocol):
    """Measures the requests of one client."""

    def begin(self, request: GenerateRequest, now: float) -> ObservedRequest:
        """Return what measures one request, which begins now."""
        ...


class Unobserved:
    """Measures nothing."""

    def begin(self, request: GenerateRequest, now: float) -> ObservedRequest:
        """Return itself."""
        return self

    def add_tokens(self, now: float) -> None:
        """Do nothing."""

    def adopt(self) -> None:
        """Do nothing."""

    def end(self, now: float, error: RyzError | None, usage: Usage) -> None:
        """Do nothing."""


UNOBSERVED = Unobserved()


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the request as this attempt.

    Attributes:
        attempt: The number of the attempt.
        resume: Where the next group goes on; None: at the beginning.
        crashes: As in `GenerateRequest`.
        to_all: Every router gets it, in place of one of them.
        repeats: Refusals of this attempt, after the last of which it is published; 0: after none.
    """

    attempt: int = 0
    resume: ResumePoint | None = None
    crashes: int = 0
    to_all: bool = False
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class AskResend:
    """Ask the group's leader for its frames from `from_seq` on.

    Attributes:
        group: The group that has the request.
        from_seq: The number of the first frame that is missing.
        instance_id: The leader that is meant; empty: any of that name.
    """

    group: str
    from_seq: int
    instance_id: str = ""


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Cancel the request at a group's leader.

    Attributes:
        group: The group; empty: every group.
        attempt: The last attempt that is to end.
        instance_id: The leader that is meant; empty: any of that name.
    """

    group: str
    attempt: int = MAX_ATTEMPT
    instance_id: str = ""


Command = Publish | AskResend | SendCancel
Commands = tuple[Command, ...]
NOTHING: Commands = ()


@dataclass(slots=True)
class GenerationStats:
    """What went wrong with frames and groups, over all requests of a client.

    Attributes:
        republished: Requests published again because no group had answered.
        gaps: Frames that arrived before one that is still missing.
        resends: Questions for missing frames.
        duplicates: Frames that had arrived before.
        ignored: Frames of other attempts, other leaders or unknown requests, and unreadable messages.
        lost: Groups that were lost, counted once for each of their requests.
        resumed: Losses after which the request was published again.
        refused: Publishes that no group could take.
        waited: New requests that waited because nothing could take them.
        waits_failed: Those that were refused in the end.
        waiting: Those that wait now; no counter, but a number that falls again.
        observe_pause: Called with the seconds that a stream paused because its group was lost.
        observer: Measures each request.
    """

    republished: int = 0
    gaps: int = 0
    resends: int = 0
    duplicates: int = 0
    ignored: int = 0
    lost: int = 0
    resumed: int = 0
    refused: int = 0
    waited: int = 0
    waits_failed: int = 0
    waiting: int = 0
    observe_pause: Callable[[float], None] = lambda seconds: None
    observer: RequestObserver = UNOBSERVED
