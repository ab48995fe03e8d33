"""The compiled kernels as Python functions; their structs are in `structs/`.

Addresses are plain integers; the caller keeps the memory alive.
"""

import ctypes
import time
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import structlog

from services.worker.engine.native.build import NoKernels, ensure, find, targets
from services.worker.engine.native.experts.structs import ExpertSlots, RouterRule
from services.worker.engine.native.structs.adapters import (
    AdapterTable,
    LinearShape,
    LowRankPart,
    PackedLowRank,
    UpSlice,
)
from services.worker.engine.native.structs.attention import (
    AttentionRows,
    PageChoice,
    Rotary,
    ScoreRule,
    SegmentParts,
)
from services.worker.engine.native.structs.cache import (
    AttentionLayer,
    CachePointers,
    ColdBlocks,
    LayerPointers,
)
from services.worker.engine.native.structs.forward import ForwardBatch, OpSpan, OpTrace, RankBarrier
from services.worker.engine.native.structs.ops import Op, OpHeader
from services.worker.engine.native.structs.rows import (
    CutNorm,
    LinearOutput,
    NormRule,
    OutputRule,
    Residual,
    RowDraw,
    TiledRows,
)
from services.worker.engine.native.structs.weights import CodeForm

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
    UpSlice,
    PackedLowRank,
    AdapterTable,
    LowRankPart,
    LinearShape,
    LayerPointers,
    CachePointers,
    RankBarrier,
)

log = structlog.get_logger(__name__)


class LayoutError(Exception):
    """A struct of the library differs from the one here."""


def _declared(function: Any, *arguments: Any, returns: Any = None) -> Any:
    """A function of a library with the types of its arguments and of its result."""
    function.argtypes, function.restype = arguments, returns
    return function


class KernelLibrary:
    """The functions of one compiled library.

    Attributes:
        target: The instruction set that it was compiled for.
        panel: Outputs of a panel of packed weights.

    Raises:
        LayoutError: Its structs differ from those in `structs/` and `experts/structs.py`.
        OSError: It cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        library = ctypes.CDLL(str(path))
        check_layout(library)
        self.target: str = _declared(library.ryz_target, returns=c_char_p)().decode()
        self.new_thread_pool = _declared(library.ryz_thread_pool_new, c_int, c_int, returns=c_void_p)
        self.free_thread_pool = _declared(library.ryz_thread_pool_free, c_void_p)
        self.run_program = _declared(
            library.ryz_run,
            c_void_p,
            POINTER(RankBarrier),
            c_void_p,
            c_int,
            POINTER(ForwardBatch),
            c_void_p,
            c_void_p,
            POINTER(OpTrace),
            returns=c_int,
        )
        self.publish_count = _declared(library.ryz_publish, POINTER(RankBarrier))
        self.wait_for_ranks = _declared(library.ryz_wait, POINTER(RankBarrier), returns=c_int)
        self.all_reduce = _declared(
            library.ryz_all_reduce, POINTER(RankBarrier), c_void_p, c_int64, c_void_p, c_int64, returns=c_int
        )
        self.packed_bytes = _declared(
            library.ryz_packed_bytes, c_int64, c_int64, c_int, POINTER(CodeForm), returns=c_int64
        )
        self.pack = _declared(library.ryz_pack, c_void_p, c_int64, c_int64, c_int, c_void_p, c_int)
        self.pack_codes = _declared(
            library.ryz_pack_codes,
            c_void_p,
            c_void_p,
            c_void_p,
            c_int64,
            c_int64,
            POINTER(CodeForm),
            c_void_p,
            c_int,
        )
        self.decode_row = _declared(
            library.ryz_decode_row, POINTER(CodeForm), c_void_p, c_int64, c_int64, c_void_p
        )
        parts, shape = POINTER(LowRankPart), POINTER(LinearShape)
        self.fits_halves = _declared(library.ryz_fits_halves, parts, shape, returns=c_int)
        self.low_rank_bytes = _declared(library.ryz_low_rank_bytes, parts, shape, c_int, returns=c_int64)
        self.pack_low_rank = _declared(
            library.ryz_pack_low_rank, parts, shape, c_int, c_void_p, POINTER(PackedLowRank)
        )
        # takes microseconds on the computing thread: it keeps the GIL rather than wait to get it back
        self.copy_out = _declared(
            ctypes.PyDLL(str(path)).ryz_copy_out,
            POINTER(CachePointers),
            c_int64,
            c_int64,
            c_int64,
            c_int64,
            c_void_p,
            c_int64,
        )
        self.copy_in = _declared(library.ryz_copy_in, *self.copy_out.argtypes)
        self.compress = _declared(library.ryz_compress, c_void_p, c_int64, c_void_p, c_void_p)
        self.draw_rows = _declared(library.ryz_draw_rows, c_void_p, POINTER(RowDraw), c_int64, c_int64)
        self.shares = _declared(library.ryz_shares, c_void_p, c_float, c_float, c_void_p, c_int64)
        self.panel: int = library.ryz_panel()
        self.bf16_instruction = _declared(library.ryz_bf16_instruction, c_int, returns=c_int)


@cache
def kernels(target: str | None = None) -> KernelLibrary:
    """The kernels for this machine, or of one variant.

    Raises:
        NoKernels: There are none.
    """
    path = _ensure_logged(target)
    try:
        return KernelLibrary(path)
    except OSError as error:  # a file system without `exec`, a C++ runtime that is missing
        raise NoKernels(f"{path} cannot be loaded: {error}; remove it to have it compiled anew") from error


def _ensure_logged(target: str | None) -> Path:
    """Like `ensure`; a compilation, which may take minutes on a busy machine, is in the log."""
    variant = target or next(iter(targets()), "")
    if not variant or find(variant) is not None:
        return ensure(target)
    log.info("compiling the kernels, once", kernels=variant)
    began = time.monotonic()
    path = ensure(target)
    log.info("kernels compiled", kernels=variant, waited_s=round(time.monotonic() - began, 1))
    return path


class _LayoutEntry(ctypes.Structure):
    """An entry of a library's table of structs; an empty field stands for the whole struct."""

    _fields_ = [
        ("type", ctypes.c_char_p),
        ("field", ctypes.c_char_p),
        ("offset", c_int64),
        ("size", c_int64),
    ]


def check_layout(library: ctypes.CDLL, structs: Sequence[type[ctypes.Structure]] = SHARED_STRUCTS) -> None:
    """Compares the structs with those of a library.

    Raises:
        LayoutError: A field has another offset or size there, or is missing on one side.
    """
    table = library.ryz_layout
    table.restype = POINTER(_LayoutEntry)
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
