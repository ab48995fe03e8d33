"""The KV cache of the leader's own engine, as contents that can be published."""

from collections.abc import Callable

from services.worker.domain.blocks.changes import BlockChanges
from services.worker.domain.kv_events.contents import KVNaming
from services.worker.leader.engine_state import EngineState
from services.worker.rank_protocol.plan import BLOCK_SIZE


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
