"""The compiled kernels as Python sees them: structures, and functions with their types.

Field by field as in `src/`; addresses are plain integers, and whoever gives one keeps its memory alive.
"""

import ctypes
from enum import IntEnum, IntFlag
from functools import cache
from pathlib import Path

from services.worker.engine.native.build import NoKernels, ensure


class Kind(IntEnum):
    """What an op does; see `src/program.cpp` for its fields."""

    EMBED = 0
    RESIDUAL = 1
    LINEAR = 2
    ROTATE = 3
    ATTENTION = 4
    PREPARE = 5
    EXCHANGE = 6
    COMPRESS = 7


class Flag(IntFlag):
    """Variants of an op."""

    NONE = 0
    SAMPLED = 1
    ASSIGN = 2
    SILU = 4
    HALF = 8
    ZONED = 16


class WeightType(IntEnum):
    """How packed weights are stored."""

    F32 = 0
    BF16 = 1
    F16 = 2
    INT8 = 3


class Op(ctypes.Structure):
    """One op of a program."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("n", ctypes.c_int64 * 7),
        ("p", ctypes.c_uint64 * 10),
        ("eps", ctypes.c_float),
        ("type", ctypes.c_int32),
    ]


class BatchPointers(ctypes.Structure):
    """The inputs of a forward pass."""

    _fields_ = [
        ("rows", ctypes.c_int32),
        ("spans", ctypes.c_int32),
        ("samples", ctypes.c_int32),
        ("fulls", ctypes.c_int32),
        ("token_ids", ctypes.c_uint64),
        ("positions", ctypes.c_uint64),
        ("slots", ctypes.c_uint64),
        ("span", ctypes.c_uint64),
        ("tables", ctypes.c_uint64),
        ("sample_rows", ctypes.c_uint64),
        ("zone_slots", ctypes.c_uint64),
        ("zone", ctypes.c_uint64),
        ("places", ctypes.c_uint64),
        ("full", ctypes.c_uint64),
    ]


class Cold(ctypes.Structure):
    """The compressed blocks of a layer; see `src/cache.h`. owner: of the memory."""

    owner: object = None
    _fields_ = [
        ("keys", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("key_scales", ctypes.c_uint64),
        ("value_scales", ctypes.c_uint64),
        ("hot", ctypes.c_int64),
    ]


class LayerBlocks(ctypes.Structure):
    """One layer's part of the cache; scales are 0 where keys and values are floats. See `src/blocks.h`."""

    _fields_ = [
        ("keys", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("key_scales", ctypes.c_uint64),
        ("value_scales", ctypes.c_uint64),
        ("item", ctypes.c_int64),
    ]


class CachePointers(ctypes.Structure):
    """The whole cache, for copies of blocks."""

    _fields_ = [
        ("layers", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("layer", ctypes.POINTER(LayerBlocks)),
    ]


class Exchange(ctypes.Structure):
    """A rank's view of the counters that all ranks of a host share."""

    _fields_ = [
        ("published", ctypes.c_uint64),
        ("timeout_ns", ctypes.c_int64),
        ("count", ctypes.c_uint32),
        ("rank", ctypes.c_int32),
        ("world", ctypes.c_int32),
        ("spin", ctypes.c_int32),
    ]


MAX_HEAD_DIM = 256
ALL_HERE = -1  # what calls return that would name a rank that is late
NUM_TIMES = 4  # linears, attention, exchanges, rows; nanoseconds


class Kernels:
    """The functions of one library. target: the instruction set that it was made for."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.target = "avx512" if library.ryz_avx512() else "avx2"
        self.team_new = library.ryz_team_new
        self.team_new.argtypes = [ctypes.c_int, ctypes.c_int]
        self.team_new.restype = ctypes.c_void_p
        self.team_free = library.ryz_team_free
        self.team_free.argtypes = [ctypes.c_void_p]
        self.team_free.restype = None
        self.run = library.ryz_run
        self.run.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(Exchange),
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.POINTER(BatchPointers),
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self.publish = library.ryz_publish
        self.publish.argtypes = [ctypes.POINTER(Exchange)]
        self.publish.restype = None
        self.wait = library.ryz_wait
        self.wait.argtypes = [ctypes.POINTER(Exchange)]
        self.all_reduce = library.ryz_all_reduce
        self.all_reduce.argtypes = [
            ctypes.POINTER(Exchange),
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_int64,
        ]
        self.packed_bytes = library.ryz_packed_bytes
        self.packed_bytes.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int]
        self.packed_bytes.restype = ctypes.c_int64
        self.pack = library.ryz_pack
        self.pack.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int,
        ]
        self.pack.restype = None
        # microseconds on the thread that computes: it keeps the interpreter, for which it might have to wait
        self.copy_out = ctypes.PyDLL(str(path)).ryz_copy_out
        self.copy_out.argtypes = [
            ctypes.POINTER(CachePointers),
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_int64,
        ]
        self.copy_out.restype = None
        self.copy_in = library.ryz_copy_in
        self.copy_in.argtypes = [
            ctypes.POINTER(CachePointers),
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_void_p,
        ]
        self.copy_in.restype = None
        self.compress = library.ryz_compress
        self.compress.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
        self.compress.restype = None
        self.panel: int = library.ryz_panel()


@cache
def kernels(target: str | None = None) -> Kernels:
    """The kernels for this machine, or of one variant. Raises `NoKernels`."""
    path = ensure(target)
    try:
        return Kernels(path)
    except OSError as error:  # a file system without `exec`, a C++ runtime that is missing
        raise NoKernels(f"{path} cannot be loaded: {error}; remove it to have it compiled anew") from error
