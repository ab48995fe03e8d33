"""The KV cache whose changes a leader publishes, and how its blocks are named."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from services.worker.domain.blocks.changes import BlockChanges
from services.worker.domain.blocks.names import PrefixSharing


class KVNaming(NamedTuple):
    """What is needed to compute the names of blocks (`shared/kv_hash.py`), beside tokens and tenant."""

    fingerprint: str
    kv_format: str
    sharing: PrefixSharing
    block_tokens: int


class KVContents(Protocol):
    """A KV cache. All methods belong to one event loop."""

    def naming(self) -> KVNaming:
        """Returns how its blocks are named."""
        ...

    def names(self) -> list[bytes]:
        """Returns the names of all blocks in it; the state after the last change."""
        ...

    def num_names(self) -> int:
        """Returns how many these are."""
        ...

    def record(self, changes: BlockChanges | None) -> None:
        """Records in `changes` what comes and goes from now on, until the next reset; None ends it."""
        ...

    def watch_resets(self, on_reset: Callable[[], None]) -> None:
        """Calls `on_reset` after the cache became another one, such as by a restart; nothing records it."""
        ...
