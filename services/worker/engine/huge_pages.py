"""Memory of weights and activations: small buffers share slabs, for which the system is asked for huge pages.

A pass goes through all of them; pages of 4 KB are more than the processor's tables of addresses hold.
"""

import mmap
import threading
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from shared.host.freed_memory import return_freed_memory

_HUGE_PAGE = 2 << 20
_SLAB = 32 << 20  # bytes; of memory that is not used only addresses are taken
_LEAST, _MOST = 4 << 10, 4 << 20  # bytes of a buffer in a slab; for larger ones numpy asks by itself
ALIGNMENT = 64  # bytes: a cache line


class _Slabs:
    """Cuts buffers from a slab until it is used up. A slab lives as long as one of its buffers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def cut(self, size: int) -> npt.NDArray[np.uint8]:
        """Returns `size` zeroed bytes, aligned."""
        whole = -(-size // ALIGNMENT) * ALIGNMENT
        with self._lock:
            if len(self._left) < whole:
                self._left = _new_slab()
            found, self._left = self._left[:size], self._left[whole:]
        return found

    def begin_anew(self) -> None:
        """The next buffer gets a new slab, so that this one lives no longer than its buffers."""
        with self._lock:
            self._left = np.empty(0, np.uint8)


_slabs = _Slabs()


def zeros(size: int) -> npt.NDArray[np.uint8]:
    """Returns `size` zeroed bytes, aligned to cache lines. A page takes memory when it is first used."""
    if _LEAST <= size < _MOST:
        return _slabs.cut(size)
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + size]


def release_memory() -> None:
    """Gives the system the memory of buffers that are not used any more."""
    _slabs.begin_anew()
    return_freed_memory()


def _new_slab() -> npt.NDArray[np.uint8]:
    memory = mmap.mmap(-1, _SLAB + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # of a system without them: small pages serve as well, only slower
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    skip = -raw.ctypes.data % _HUGE_PAGE
    return raw[skip : skip + _SLAB]
