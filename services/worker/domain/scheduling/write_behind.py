"""Which blocks are to be written to the store, which are being written, and which are there, as far as known.

A block goes in when it is full and computed, comes out in a step's plan, and is known when all ranks have
written it. What is not written in time is no loss: somebody computes it again.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from services.worker.domain.scheduling.block_manager import BlockManager
from services.worker.rank_protocol.plan import StoreBlock

MAX_PER_STEP = 64  # copies that a step begins with; each takes the ranks some tens of microseconds


class WriteBehind:
    """Names only; whether they still have a block is asked when they are taken.

    max_waiting: names that may wait; the oldest goes then. max_known: names remembered as stored.
    enabled: whether the store is used at all. writes: whether blocks are written to it.
    """

    def __init__(self, *, max_waiting: int = 16_384, max_known: int = 262_144) -> None:
        self.enabled = False
        self.writes = True
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
        """Blocks of these names are full and computed."""
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
        """What the next step is to copy. A name that has no block any more is left out for good."""
        taken: list[StoreBlock] = []
        while self._waiting and len(taken) < MAX_PER_STEP:
            name, _ = self._waiting.popitem(last=False)
            block = blocks.find(name)
            if block is not None:
                taken.append(StoreBlock(block, name))
                self._writing.add(name)
        return taken

    def done(self, stored: Iterable[bytes], dropped: Iterable[bytes]) -> None:
        """What became of names that were taken."""
        self._writing.difference_update(dropped)
        for name in stored:
            if name in self._writing:  # else it was forgotten meanwhile
                self._writing.discard(name)
                self._learn(name)

    def found(self, names: Iterable[bytes]) -> None:
        """The store has these, whoever wrote them; of those in doubt that says nothing."""
        for name in names:
            if name in self._doubtful:
                continue
            self._waiting.pop(name, None)
            if name not in self._writing:
                self._learn(name)

    def forget(self, names: Iterable[bytes]) -> None:
        """The store does not have these: who computes them writes them anew."""
        for name in names:
            self._known.pop(name, None)
            self._waiting.pop(name, None)
            self._writing.discard(name)

    def distrust(self, names: Sequence[bytes]) -> None:
        """The store does not have these as they should be, whoever finds them there, until they are written
        anew.
        """
        self.forget(names)
        self._doubtful.update(dict.fromkeys(names))
        while len(self._doubtful) > self._max_waiting:
            self._doubtful.popitem(last=False)

    def unlearn(self, names: Iterable[bytes]) -> None:
        """The store no longer has these; what is on its way there still comes."""
        for name in names:
            self._known.pop(name, None)

    def forget_all(self) -> None:
        """The store may have lost everything, or is away."""
        self._known.clear()
        self._waiting.clear()

    def is_known(self, name: bytes) -> bool:
        """Whether the store is known to have it."""
        return name in self._known

    def is_due(self, name: bytes) -> bool:
        """Whether it may still become known: it waits, or is being written."""
        return name in self._waiting or name in self._writing

    def due(self) -> list[bytes]:
        """All names that may still become known."""
        return [*self._waiting, *self._writing]

    def num_known_of(self, names: Sequence[bytes]) -> int:
        """How many of a sequence's blocks the store has, from the first on without a gap."""
        for count, name in enumerate(names):
            if name not in self._known:
                return count
        return len(names)

    def num_trusted_of(self, names: Sequence[bytes]) -> int:
        """How many of a sequence's blocks are not in doubt, from the first on without a gap."""
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
