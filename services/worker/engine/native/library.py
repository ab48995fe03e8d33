"""The compiled kernels as Python functions; their structs are in `structs.py`.

Addresses are plain integers; the caller keeps the memory alive.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from services.worker.engine.native.build import NoKernels, ensure
from services.worker.engine.native.experts.expert_structs import ExpertSlots, RouterRule
from services.worker.engine.native.ops import Op, OpHeader
from services.worker.engine.native.structs import (
    AttentionLayer,
    AttentionRows,
    CachePointers,
    CodeForm,
    ColdBlocks,
    CutNorm,
    ForwardBatch,
    LayerPointers,
    LinearOutput,
    NormRule,
    OpSpan,
    OpTrace,
    OutputRule,
    PageChoice,
    RankBarrier,
    Residual,
    Rotary,
    RowDraw,
    ScoreRule,
    SegmentParts,
    TiledRows,
)

MAX_HEAD_DIM = 256
ALL_HERE = -1  # returned in place of the number of a rank that is late
NUM_TIMES = 4  # nanoseconds of linears, attention, rank barriers, and operations on rows
SHARED_STRUCTS: tuple[type[ctypes.Structure], ...] = (
    ForwardBatch,
    OpSpan,
    OpTrace,
    AttentionLayer,
    PageChoice,
    ColdBlocks,
    TiledRows,
    CodeForm,
    NormRule,
    CutNorm,
    OutputRule,
    LinearOutput,
    Residual,
    Rotary,
    RowDraw,
    ScoreRule,
    SegmentParts,
    AttentionRows,
    RouterRule,
    ExpertSlots,
    OpHeader,
    *Op.__subclasses__(),
    LayerPointers,
    CachePointers,
    RankBarrier,
)


class LayoutError(Exception):
    """A struct of the library differs from the one here."""


class KernelLibrary:
    """The functions of one compiled library.

    Attributes:
        target: The instruction set that it was compiled for.
        panel: Outputs of a panel of packed weights.

    Raises:
        LayoutError: Its structs differ from those in `structs.py` and `ops.py`.
        OSError: It cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        check_layout(library)
        self.target = "avx512" if library.ryz_avx512() else "avx2"
        self.new_thread_pool = library.ryz_thread_pool_new
        self.new_thread_pool.argtypes = [ctypes.c_int, ctypes.c_int]
        self.new_thread_pool.restype = ctypes.c_void_p
        self.free_thread_pool = library.ryz_thread_pool_free
        self.free_thread_pool.argtypes = [ctypes.c_void_p]
        self.free_thread_pool.restype = None
        self.run_program = library.ryz_run
        self.run_program.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(RankBarrier),
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.POINTER(ForwardBatch),
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.POINTER(OpTrace),
        ]
        self.publish_count = library.ryz_publish
        self.publish_count.argtypes = [ctypes.POINTER(RankBarrier)]
        self.publish_count.restype = None
        self.wait_for_ranks = library.ryz_wait
        self.wait_for_ranks.argtypes = [ctypes.POINTER(RankBarrier)]
        self.all_reduce = library.ryz_all_reduce
        self.all_reduce.argtypes = [
            ctypes.POINTER(RankBarrier),
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_int64,
        ]
        self.packed_bytes = library.ryz_packed_bytes
        self.packed_bytes.argtypes = [
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.POINTER(CodeForm),
        ]
        self.packed_bytes.restype = ctypes.c_int64
        self.pack = library.ryz_pack
        self.pack.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_int,
        ]
        self.pack.restype = None
        self.pack_codes = library.ryz_pack_codes
        self.pack_codes.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.POINTER(CodeForm),
            ctypes.c_void_p,
            ctypes.c_int,
        ]
        self.pack_codes.restype = None
        self.decode_row = library.ryz_decode_row
        self.decode_row.argtypes = [
            ctypes.POINTER(CodeForm),
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_void_p,
        ]
        self.decode_row.restype = None
        # takes microseconds on the computing thread: it keeps the GIL rather than wait to get it back
        self.copy_out = ctypes.PyDLL(str(path)).ryz_copy_out
        self.copy_out.argtypes = [
            ctypes.POINTER(CachePointers),
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_int64,
        ]
        self.copy_out.restype = None
        self.copy_in = library.ryz_copy_in
        self.copy_in.argtypes = self.copy_out.argtypes
        self.copy_in.restype = None
        self.compress = library.ryz_compress
        self.compress.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
        self.compress.restype = None
        self.draw_rows = library.ryz_draw_rows
        self.draw_rows.argtypes = [ctypes.c_void_p, ctypes.POINTER(RowDraw), ctypes.c_int64, ctypes.c_int64]
        self.draw_rows.restype = None
        self.shares = library.ryz_shares
        self.shares.argtypes = [
            ctypes.c_void_p,
            ctypes.c_float,
            ctypes.c_float,
            ctypes.c_void_p,
            ctypes.c_int64,
        ]
        self.shares.restype = None
        self.panel: int = library.ryz_panel()
        self.bf16_instruction = library.ryz_bf16_instruction
        self.bf16_instruction.argtypes = [ctypes.c_int]


@cache
def kernels(target: str | None = None) -> KernelLibrary:
    """The kernels for this machine, or of one variant.

    Raises:
        NoKernels: There are none.
    """
    path = ensure(target)
    try:
        return KernelLibrary(path)
    except OSError as error:  # a file system without `exec`, a C++ runtime that is missing
        raise NoKernels(f"{path} cannot be loaded: {error}; remove it to have it compiled anew") from error


class _LayoutEntry(ctypes.Structure):
    """An entry of a library's table of structs; an empty field stands for the whole struct."""

    _fields_ = [
        ("type", ctypes.c_char_p),
        ("field", ctypes.c_char_p),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_int64),
    ]


def check_layout(library: ctypes.CDLL, structs: Sequence[type[ctypes.Structure]] = SHARED_STRUCTS) -> None:
    """Compares the structs with those of a library.

    Raises:
        LayoutError: A field has another offset or size there, or is missing on one side.
    """
    table = library.ryz_layout
    table.restype = ctypes.POINTER(_LayoutEntry)
    entries, native = table(), dict[str, tuple[int, int]]()
    index = 0
    while entries[index].type:
        entry = entries[index]
        native[f"{entry.type.decode()}.{entry.field.decode()}"] = entry.offset, entry.size
        index += 1
    own = {f"{struct.__name__}.": (0, ctypes.sizeof(struct)) for struct in structs}
    for struct in structs:
        for name, *_ in struct._fields_:
            field = getattr(struct, name)
            own[f"{struct.__name__}.{name}"] = field.offset, field.size
    for name in sorted(own | native, key=lambda name: name.endswith(".")):  # fields before whole structs
        if own.get(name) != native.get(name):
            raise LayoutError(
                f"{name.removesuffix('.')}: offset and size are {own.get(name)} in native/*.py and "
                f"{native.get(name)} in native/src; change both alike"
            )
