"""Calls that wait for room: requests of batches, which interactive requests go before. Pure.

They have the lowest priority, take nothing of their tenant's rate, make no session, and have a seed that
follows from their name: computed twice, such a call has the same answer, and its usage counts once.
"""

from collections.abc import Sequence
from hashlib import blake2b

from msgspec.structs import replace

from services.gateway.admission.caller import BackgroundCall
from shared.messages import GenerateRequest
from shared.messages.base import BACKGROUND_PRIORITY


def in_background(requests: Sequence[GenerateRequest], call: BackgroundCall | None) -> list[GenerateRequest]:
    """The generations of a call as they are to run; those of an interactive call as they are."""
    if call is None:
        return list(requests)
    changed = []
    for index, request in enumerate(requests):
        made = blake2b(f"{call.name}:{index}".encode(), digest_size=8, person=b"background").digest()
        seed = request.sampling.seed if call.seeded else int.from_bytes(made) >> 1
        session = request.session if request.session is not None and request.session.given else None
        sampling = replace(request.sampling, seed=seed)
        changed.append(
            replace(
                request,
                priority=BACKGROUND_PRIORITY,
                sampling=sampling,
                session=session,
                usage_id=f"{call.name}-{index:x}" if index else call.name,
            )
        )
    return changed
