"""Where the time of a request went: each service reports what it has recorded of it."""

from typing import Annotated, ClassVar

import msgspec

from shared.messages.base import SMALL, Wire

MAX_TIMELINES = 256  # in one answer; fewer if they do not fit into a message


class ExplainQuery(Wire, frozen=True, kw_only=True):
    """Asks every service for its records of a request.

    Attributes:
        request_id: The id, or what it begins with: ids of requests begin with the caller's.
    """

    max_bytes: ClassVar[int] = SMALL
    request_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Moment(Wire, frozen=True, kw_only=True):
    """A point that a request has passed.

    Attributes:
        name: The point's name.
        at_us: Microseconds since 1970, by the clock of the service's machine.
        data: What is known of it, such as the group; never text of prompts or answers.
    """

    name: str
    at_us: int
    data: dict[str, str | int | float] = {}


class Timeline(Wire, frozen=True, kw_only=True):
    """What one service has recorded of one attempt at a request.

    Attributes:
        left_out: Moments beyond the bound.
    """

    request_id: str
    attempt: int = 0
    moments: list[Moment] = []
    left_out: int = 0


class Explanation(Wire, frozen=True, kw_only=True):
    """Answer to `ExplainQuery`, of each service that has records of the request.

    Attributes:
        now_us: Time of the answer, by the same clock as the moments.
    """

    service: str
    instance_id: str
    now_us: int
    timelines: list[Timeline]
