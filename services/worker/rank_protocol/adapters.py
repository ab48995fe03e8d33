"""Messages between a leader and its ranks about adapters (LoRA; Hu et al., arXiv 2106.09685).

The leader decides which adapter is in which slot; each rank reads its share of the files into its memory.
"""

import msgspec

NO_ADAPTER = -1  # the slot of sequences that the base alone computes


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Leader: read an adapter into a slot, while steps of other sequences go on.

    Until `AdapterLoaded` no sequence of the slot is admitted, and none of an adapter that was there before
    runs after `after_step`.

    Attributes:
        slot: From 0; ranks take any number, and the leader bounds their memory.
        source: Directory (PEFT) or file (GGUF), as this host sees it; empty: the slot is emptied.
        fingerprint: Of its content; ranks refuse another one.
        after_step: The last step that was submitted before: steps up to it run with what the slot had, and
            the memory of that is free when a later one begins.
    """

    order_id: int
    slot: int
    source: str
    fingerprint: str
    after_step: int = 0


class AdapterLoaded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rank: an adapter is in its slot, or is not.

    Attributes:
        num_bytes: Memory that it takes on this rank.
        error: Why it is not there, in one sentence; empty: it is. The slot then is empty.
    """

    order_id: int
    num_bytes: int = 0
    seconds: float = 0.0
    error: str = ""
