"""What an `Assembly` wants done, as data; `client.py` does it. And what it counts."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.messages import ResumePoint
from shared.messages.base import MAX_ATTEMPT


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the request (again), as that attempt. crashes: as in `GenerateRequest`."""

    attempt: int = 0
    resume: ResumePoint | None = None
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class AskResend:
    """Ask the group's leader, that instance of it, for the frames from a number on."""

    group: str
    from_seq: int
    instance_id: str = ""


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Tell a group, or every group when it is empty, that the answer is no longer wanted.

    attempt: the last one that is to end. instance_id: of the group, the leader that is meant; empty: any.
    """

    group: str
    attempt: int = MAX_ATTEMPT
    instance_id: str = ""


Command = Publish | AskResend | SendCancel
Commands = tuple[Command, ...]
NOTHING: Commands = ()


@dataclass(slots=True)
class AssemblyStats:
    """What went wrong with frames and groups, over all requests of a client.

    lost: groups, each for one request; resumed: those of them that another group went on with. refused:
    offers to go on that nobody could take then. observe_pause: told how many seconds a stream paused so.
    """

    republished: int = 0
    gaps: int = 0
    resends: int = 0
    duplicates: int = 0
    ignored: int = 0
    lost: int = 0
    resumed: int = 0
    refused: int = 0
    observe_pause: Callable[[float], None] = lambda seconds: None
