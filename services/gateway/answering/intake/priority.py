"""The field `priority` of bodies, in vLLM's sense: the lower it is, the earlier a request is served. Pure."""

from collections.abc import Sequence

import msgspec

from services.gateway.answering.left_out import LeftOut
from shared.messages import GenerateRequest
from shared.messages.base import BACKGROUND_PRIORITY

_LOWEST, _HIGHEST = BACKGROUND_PRIORITY + 1, 10  # of requests; a higher one goes first


def priority_of(given: int | None) -> int:
    """The priority of a request for the value in its body."""
    return 0 if given is None else max(_LOWEST, min(-given, _HIGHEST))


def limit_priority(
    requests: Sequence[GenerateRequest], most: int
) -> tuple[list[GenerateRequest], list[LeftOut]]:
    """The requests with a priority of `most` at most, and what their caller is told of it."""
    if all(request.priority <= most for request in requests):
        return list(requests), []
    limited = LeftOut("priority", why=f"limited to {-most}")
    return [msgspec.structs.replace(one, priority=min(one.priority, most)) for one in requests], [limited]
