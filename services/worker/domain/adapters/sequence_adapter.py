"""The adapter that a sequence runs with, and the messages' field that it comes from."""

from dataclasses import dataclass

from shared.messages import Adapter


@dataclass(frozen=True, slots=True)
class SequenceAdapter:
    """An adapter, as far as scheduling needs it.

    Attributes:
        fingerprint: Of its content; two of one fingerprint are the same.
        source: Where ranks read it.
        num_bytes: Memory that it takes on all ranks together.
    """

    fingerprint: str
    source: str
    num_bytes: int


def sequence_adapter(adapter: Adapter | None) -> SequenceAdapter | None:
    """Returns what scheduling needs of an adapter; None for the base."""
    if adapter is None:
        return None
    return SequenceAdapter(adapter.fingerprint, adapter.source, adapter.num_bytes)
