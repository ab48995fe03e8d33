"""What a leader wants to know of an adapter before it serves it; it imports nothing of the engine."""

from dataclasses import dataclass


class AdapterError(Exception):
    """An adapter that cannot be served; the text names the file, the tensor or field, and the remedy."""


@dataclass(frozen=True, slots=True)
class AdapterDescription:
    """An adapter whose files were read and fit their base.

    Attributes:
        fingerprint: 32 hexadecimal digits for its matrices, scales and magnitudes.
        rank: The largest of its ranks.
        num_bytes: Memory of all that it changes in its targets, fp32, on all ranks of a group together.
        targets: Canonical modules of the base that it changes, sorted.
    """

    fingerprint: str
    rank: int
    num_bytes: int
    targets: tuple[str, ...]
