"""Calls that wait for room: requests of batches, which interactive requests go before. Pure.

A trusted door inside the process marks them in the scope of ASGI. They have the lowest priority, take nothing
of their tenant's rate, make no session, and have a seed that follows from their name: computed twice, such a
call has the same answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from msgspec.structs import replace

from shared.messages import GenerateRequest
from shared.messages.base import BACKGROUND_PRIORITY

BACKGROUND = "ryz.background"  # in scopes that the process makes itself


@dataclass(frozen=True, slots=True)
class BackgroundCall:
    """How a call runs.

    Attributes:
        name: Unique; decides the seed.
        seeded: The body has a seed of its own.
    """

    name: str
    seeded: bool = False


def in_background(requests: Sequence[GenerateRequest], scope: Mapping[str, Any]) -> list[GenerateRequest]:
    """The generations of a call as they are to run; without the mark as they are."""
    call: BackgroundCall | None = scope.get(BACKGROUND)
    if call is None:
        return list(requests)
    changed = []
    for place, request in enumerate(requests):
        made = blake2b(f"{call.name}:{place}".encode(), digest_size=8, person=b"background").digest()
        seed = request.sampling.seed if call.seeded else int.from_bytes(made) >> 1
        session = request.session if request.session is not None and request.session.given else None
        sampling = replace(request.sampling, seed=seed)
        changed.append(replace(request, priority=BACKGROUND_PRIORITY, sampling=sampling, session=session))
    return changed
