"""The KV cache whose changes a leader publishes: that of its engine, or of an engine of others."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from services.worker.domain.blocks.changes import BlockChanges
from services.worker.domain.blocks.names import PrefixSharing
from services.worker.leader.engine_state import EngineState
from services.worker.rank_protocol.plan import BLOCK_SIZE


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


class EngineContents:
    """The cache of the leader's own engine; empty while the engine is down."""

    def __init__(self, engine: EngineState) -> None:
        self._engine = engine

    def naming(self) -> KVNaming:
        """Returns how its blocks are named."""
        names = self._engine.facts.names
        return KVNaming(names.fingerprint, names.kv_format, names.sharing, BLOCK_SIZE)

    def names(self) -> list[bytes]:
        """Returns the names of all blocks in it."""
        scheduler = self._engine.scheduler
        return [] if scheduler is None else scheduler.blocks.cached_names()

    def num_names(self) -> int:
        """Returns how many these are."""
        scheduler = self._engine.scheduler
        return 0 if scheduler is None else scheduler.blocks.num_names

    def record(self, changes: BlockChanges | None) -> None:
        """Records in `changes` what comes and goes from now on; None ends it."""
        if self._engine.scheduler is not None:
            self._engine.scheduler.blocks.record_changes(changes)

    def watch_resets(self, on_reset: Callable[[], None]) -> None:
        """Calls `on_reset` after each start and each end of the engine."""
        self._engine.watch_starts(on_reset)
