"""Write-behind: which blocks wait to be written to the store, are being written, and are known to be stored.

A block is added when it is full and computed, taken by a step's plan, and known when all ranks have written
it. A block that is not written in time is no loss: it is computed again.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from services.worker.domain.blocks.manager import BlockManager
from services.worker.rank_protocol.kv_messages import StoreBlock

MAX_PER_STEP = 64  # copies that a step begins with; each takes the ranks some tens of microseconds


class WriteBehind:
    """Keeps names; whether they still have a block is checked when they are taken.

    Args:
        max_waiting: Names that may wait; beyond it the oldest is dropped.
        max_known: How many names are remembered as stored.

    Attributes:
        enabled: Whether the store is used at all.
        writes: Whether blocks are written to it.
        hurries: Whether ranks write at once what they have copied, for a caller that waits for it.
    """

    def __init__(self, *, max_waiting: int = 16_384, max_known: int = 262_144) -> None:
        self.enabled = False
        self.writes = True
        self.hurries = False
        self._max_waiting, self._max_known = max_waiting, max_known
        self._waiting: OrderedDict[bytes, None] = OrderedDict()
        self._writing: set[bytes] = set()
        self._known: OrderedDict[bytes, None] = OrderedDict()  # the one not seen for longest comes first
        self._doubtful: OrderedDict[bytes, None] = OrderedDict()

    def switch(self, *, enabled: bool, writes: bool) -> None:
        """Sets whether the store is used, and whether blocks are written to it."""
        if self.enabled and not enabled:
            self.forget_all()  # the store may come back empty
        self.enabled, self.writes = enabled, writes

    @property
    def has_work(self) -> bool:
        """Whether a plan has something to take."""
        return bool(self._waiting)

    @property
    def num_known(self) -> int:
        """Names known to be stored."""
        return len(self._known)

    def add(self, names: Iterable[bytes]) -> None:
        """Queues the names of blocks that are full and computed."""
        if not self.enabled or not self.writes:
            return
        for name in names:
            if name in self._known:
                self._known.move_to_end(name)
            elif name not in self._writing:
                self._waiting[name] = None
        while len(self._waiting) > self._max_waiting:
            self._waiting.popitem(last=False)

    def take(self, blocks: BlockManager) -> list[StoreBlock]:
        """Returns what the next step copies. Names without a block are dropped."""
        taken: list[StoreBlock] = []
        while self._waiting and len(taken) < MAX_PER_STEP:
            name, _ = self._waiting.popitem(last=False)
            found = blocks.find(name)
            if found is not None:
                block, sliding = found
                taken.append(StoreBlock(block, name, sliding))
                self._writing.add(name)
        return taken

    def done(self, stored: Iterable[bytes], dropped: Iterable[bytes]) -> None:
        """Records which of the taken names were stored, and which were dropped."""
        self._writing.difference_update(dropped)
        for name in stored:
            if name in self._writing:  # else it was forgotten meanwhile
                self._writing.discard(name)
                self._learn(name)

    def found(self, names: Iterable[bytes]) -> None:
        """Records names that the store has, of any group's writing; names in doubt stay in doubt."""
        for name in names:
            if name in self._doubtful:
                continue
            self._waiting.pop(name, None)
            if name not in self._writing:
                self._learn(name)

    def forget(self, names: Iterable[bytes]) -> None:
        """Records names that the store does not have; they are written when they are computed again."""
        for name in names:
            self._known.pop(name, None)
            self._waiting.pop(name, None)
            self._writing.discard(name)

    def distrust(self, names: Sequence[bytes]) -> None:
        """Doubts blocks that are damaged or missing: they are not fetched until they are written anew."""
        self.forget(names)
        self._doubtful.update(dict.fromkeys(names))
        while len(self._doubtful) > self._max_waiting:
            self._doubtful.popitem(last=False)

    def unlearn(self, names: Iterable[bytes]) -> None:
        """Records names that the store no longer has; writes in flight go on."""
        for name in names:
            self._known.pop(name, None)

    def forget_all(self) -> None:
        """Forgets everything: the store may have lost it, or is away."""
        self._known.clear()
        self._waiting.clear()

    def is_due(self, name: bytes) -> bool:
        """Returns whether a name waits or is being written."""
        return name in self._waiting or name in self._writing

    def due(self) -> list[bytes]:
        """Returns all names that wait or are being written."""
        return [*self._waiting, *self._writing]

    def num_known_of(self, names: Sequence[bytes]) -> int:
        """Returns how many leading names are known to be stored."""
        for count, name in enumerate(names):
            if name not in self._known:
                return count
        return len(names)

    def num_trusted_of(self, names: Sequence[bytes]) -> int:
        """Returns how many leading names are not in doubt."""
        if self._doubtful:
            for count, name in enumerate(names):
                if name in self._doubtful:
                    return count
        return len(names)

    def _learn(self, name: bytes) -> None:
        self._doubtful.pop(name, None)
        self._known[name] = None
        self._known.move_to_end(name)
        if len(self._known) > self._max_known:
            self._known.popitem(last=False)
