"""Maps pages before they are used: a page fault for each of them takes longer than copying it.

Needs Linux 5.14; on other systems the pages are mapped one by one when they are used.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Final

_POPULATE_READ: Final = 22  # of madvise, as the kernel's mman-common.h numbers them
_POPULATE_WRITE: Final = 23
_PAGE: Final = 4096


def map_pages(address: int, num_bytes: int, *, write: bool = False) -> bool:
    """Maps the pages of memory of this process; the GIL is free meanwhile.

    Args:
        address: Of the first byte.
        num_bytes: Of the memory, all of which has to exist: of a file that is sparse, pages are made.
        write: Map them to be written.

    Returns:
        Whether all of them are mapped.
    """
    first = address // _PAGE * _PAGE
    size = -(-(address + num_bytes - first) // _PAGE) * _PAGE
    return _madvise()(first, size, _POPULATE_WRITE if write else _POPULATE_READ) == 0


@cache
def _madvise() -> Callable[[int, int, int], int]:
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
