"""The errors with which a client ends a generation. Pure."""

from collections.abc import Sequence

from shared.client.generation.attempts import Interruption
from shared.errors import (
    Cancelled,
    DeadlineExceeded,
    GroupLost,
    RequestTooLarge,
    RyzError,
    Unavailable,
    from_code,
)


def attached_elsewhere(request_id: str) -> Cancelled:
    """Another caller has taken the request over."""
    return Cancelled(f"request {request_id} goes on elsewhere", reason="attached_elsewhere")


RETRY_S = 1.0  # what is away is back in seconds


def unanswered(request_id: str, num_publishes: int, *, no_router: bool) -> Unavailable:
    """No group took the request; `no_router`: the broker said that no router listens."""
    if no_router:
        return Unavailable("no router is running; start one, or try again shortly", reason="no_router")
    return Unavailable(
        f"no group took request {request_id}, which was published {num_publishes} times", reason="no_answer"
    )


def waited_in_vain(error: RyzError, waited_s: float) -> RyzError:
    """The last refusal of a new request that waited, with the time of the wait and when to come back."""
    data = {"retry_after_s": RETRY_S, **error.data}
    return from_code(error.code, f"{error.message} (waited {waited_s:.1f} s)", data)


def too_many_wait(error: RyzError) -> RyzError:
    """The refusal of a new request for which no room is left among those that wait."""
    data = {"retry_after_s": RETRY_S, **error.data}
    return from_code(error.code, f"{error.message}; as many requests as may wait do so already", data)


def slow_reader(request_id: str, max_ready: int) -> Cancelled:
    """Too many frames wait for the reader."""
    return Cancelled(
        f"the reader of request {request_id} fell {max_ready} frames behind; read faster",
        reason="slow_reader",
    )


def answer_too_large(request_id: str, max_bytes: int) -> RequestTooLarge:
    """The frames that wait for the reader take too much memory."""
    return RequestTooLarge(
        f"the unread answer to request {request_id} takes more than "
        f"{max_bytes} bytes; ask for fewer "
        "tokens, choices or log probabilities, or stream it and read faster",
        reason="answer_bytes",
    )


def out_of_time(request_id: str, group: str, losses: Sequence[Interruption]) -> DeadlineExceeded:
    """The deadline has passed; `group` has the request, or is empty."""
    where = f"in group {group}" if group else "before a group took it"
    if losses:
        where += f", after group {losses[-1].group} was lost ({losses[-1].reason})"
    return DeadlineExceeded(f"request {request_id} ran out of time {where}")


def group_lost(request_id: str, group: str, why: str, reason: str, num_losses: int) -> GroupLost:
    """The group was lost, and the request may not be published again."""
    often = f" ({num_losses} groups in all)" if num_losses > 1 else ""
    message = (
        f"group {group} was lost while it ran request {request_id}{often}: {why}; send the request again"
    )
    return GroupLost(message, group=group, reason=reason)
