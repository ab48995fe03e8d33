"""Which pages of memory the system has given to a process."""

import ctypes
import mmap

import torch


def resident_pages(tensor: torch.Tensor) -> list[bool]:
    """Whether each page that begins in the tensor has memory."""
    begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = tensor.data_ptr() + tensor.nbytes - begin
    if size <= 0:
        return []
    found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(size), found) == 0
    return [bool(one & 1) for one in found]


def resident_share(tensor: torch.Tensor) -> float:
    """The share of those pages that have memory."""
    found = resident_pages(tensor)
    return sum(found) / len(found)
