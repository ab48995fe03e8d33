"""What came into a group's KV cache and what left it since this was last asked for.

Names that came and left meanwhile cancel out, so what is given is the difference of two states of the cache.
"""

from collections.abc import Callable
from typing import NamedTuple


class NameChanges(NamedTuple):
    """Names that left and names that came; none is in both."""

    removed: list[bytes]
    stored: list[bytes]


class BlockChanges:
    """Recorded by a `BlockPool`, or by what follows the cache of an engine of others.

    Args:
        on_first: Called with the first change after each `take`.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self._is_there: dict[bytes, bool] = {}

    def note_stored(self, name: bytes) -> None:
        """Records a name that was not there before."""
        if self._is_there.pop(name, None) is None:
            self._note(name, True)

    def note_removed(self, name: bytes) -> None:
        """Records that a name is not there any more."""
        if self._is_there.pop(name, None) is None:
            self._note(name, False)

    def take(self) -> NameChanges:
        """Returns the changes since the last call."""
        changes, self._is_there = self._is_there, {}
        removed = [name for name, is_there in changes.items() if not is_there]
        return NameChanges(removed, [name for name, is_there in changes.items() if is_there])

    def _note(self, name: bytes, is_there: bool) -> None:
        if not self._is_there:
            self._on_first()
        self._is_there[name] = is_there
