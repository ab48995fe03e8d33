"""Checks that a group can run a request's adapter at all."""

from services.worker.leader.engine_state import EngineFacts
from shared.errors import InvalidRequest
from shared.messages import Adapter


def check_adapter(adapter: Adapter | None, facts: EngineFacts) -> None:
    """Checks that the engine computes with adapters, and has room for this one.

    Raises:
        InvalidRequest: It does not, or never has.
    """
    if adapter is None:
        return
    if not facts.adapter_bytes:
        raise InvalidRequest(
            f"the engine of {adapter.base} computes without adapters; ask for the base",
            param="model",
            reason="adapter_not_loaded",
        )
    if adapter.num_bytes > facts.adapter_bytes:
        raise InvalidRequest(
            f"the adapter {adapter.model} takes {adapter.num_bytes:,} bytes, and a group of {adapter.base} "
            f"has {facts.adapter_bytes:,} for all; raise RYZ_ADAPTER_BYTES",
            param="model",
            reason="adapter_not_loaded",
        )
