"""The file format of packed weights: the tensors of a rank as the kernels read them.

After a page for the magic bytes come the tensors, each at a cache line; then the index: the key that the file
was made for, a checksum of each piece, and the tree of `NativeWeights` with a place in the file for each
tensor. Nothing in a file is code: only the types that are listed here are made of it.
"""

import ctypes
import mmap
import os
import stat
import struct
import warnings
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import IO, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from services.worker.engine.config.model import ModelConfig
from services.worker.engine.huge_pages import ALIGNMENT
from services.worker.engine.native.experts.packed_experts import PackedExperts, StackedLinear
from services.worker.engine.native.layers.packed_layer import NativeAttention, NativeLayer, NativeMlp
from services.worker.engine.native.layers.packed_norm import PackedNorm
from services.worker.engine.native.operands import InputKinds
from services.worker.engine.native.packed_weights import EmbeddingTable, PackedLinear
from services.worker.engine.native.structs.rows import NormKind, OutputRule
from services.worker.engine.native.structs.weights import CodeForm, WeightType
from services.worker.engine.native.weights import NativeWeights

MAGIC = b"RYZPACK1"
PIECE = 16 << 20  # bytes with a checksum of their own, so that threads share the work
_UNSYNCED = 64 << 20  # bytes at least that are synced together: the system cannot take them back before
_BEGIN = 4096  # of the first tensor
_END = struct.Struct("<QII8s")  # where the index begins, its length and checksum, and the magic bytes

_TYPES: dict[str, type[Any]] = {
    one.__name__: one
    for one in (
        NativeWeights, NativeLayer, NativeAttention, NativeMlp, PackedLinear, EmbeddingTable, PackedNorm,
        PackedExperts, StackedLinear, InputKinds, WeightType, NormKind, OutputRule, CodeForm,
    )
}  # fmt: skip


class PackedFileError(Exception):
    """A file that is not what was asked for; the text says why."""


class Index(msgspec.Struct, frozen=True):
    """What stands behind the tensors.

    Attributes:
        key: What the file was made for.
        tensors: Offset, type and shape of each.
        checksums: Of the pieces between the first page and this index (CRC-32).
        tree: The weights, without their tensors.
    """

    key: str
    tensors: list[tuple[int, str, list[int]]]
    checksums: list[int]
    tree: Any


def write(file: IO[bytes], weights: NativeWeights, config: ModelConfig, key: str) -> None:
    """Writes weights to a new file that can be read, too.

    Raises:
        OSError: It cannot be written.
    """
    tensors: list[Tensor] = []
    tree = _encode(weights, tensors, _configs(config))
    places, own, end = _places(tensors)
    file.write(MAGIC)
    unsynced = 0
    for one in own:
        file.seek(places[one])
        whole = tensors[one].contiguous().view(-1).view(torch.uint8).numpy().data
        for begin in range(0, len(whole), _UNSYNCED):
            unsynced += file.write(whole[begin : begin + _UNSYNCED])
            if unsynced >= _UNSYNCED:
                file.flush()
                os.fdatasync(file.fileno())
                unsynced = 0
    file.truncate(max(end, _BEGIN))
    file.flush()
    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        sums = _checksums(memory, end, 1)
    table = [
        (place, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        for tensor, place in zip(tensors, places, strict=True)
    ]
    index = msgspec.msgpack.encode(Index(key, table, sums, tree))
    file.seek(max(end, _BEGIN))
    file.write(index + _END.pack(max(end, _BEGIN), len(index), zlib.crc32(index), MAGIC))
    file.flush()


def read(fd: int, config: ModelConfig, key: str, threads: int) -> NativeWeights:
    """Maps the weights of a file, whose descriptor may be closed then.

    Raises:
        PackedFileError: It is damaged, was made for something else, or others than this user may write it.
        OSError: It cannot be read.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PackedFileError("it is not a file that only this user can write")
    if found.st_size < _BEGIN + _END.size:
        raise PackedFileError("it is cut off")
    memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    begin, length, checksum, magic = _END.unpack(memory[-_END.size :])
    if memory[: len(MAGIC)] != MAGIC or magic != MAGIC or begin + length + _END.size != len(memory):
        raise PackedFileError("it is cut off, or no file of packed weights")
    encoded = memory[begin : begin + length]
    if zlib.crc32(encoded) != checksum:
        raise PackedFileError("its index is damaged")
    try:
        index = msgspec.msgpack.decode(encoded, type=Index)
    except msgspec.MsgspecError as error:
        raise PackedFileError(f"its index cannot be read: {error}") from error
    if index.key != key:
        raise PackedFileError("it was made for other weights")
    memory.madvise(mmap.MADV_WILLNEED)
    if _checksums(memory, begin, threads) != index.checksums:
        raise PackedFileError("its tensors are damaged")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # nobody writes into weights
        bytes_ = torch.from_numpy(np.frombuffer(memory, np.uint8))
    tensors = []
    for offset, dtype, shape in index.tensors:
        of = getattr(torch, dtype)
        size = of.itemsize * int(np.prod(shape, dtype=np.int64))
        tensors.append(bytes_[offset : offset + size].view(of).view(shape))
    weights = _decode(index.tree, tensors, _configs(config))
    assert isinstance(weights, NativeWeights)
    return weights


def _configs(config: ModelConfig) -> list[object]:
    """The parts of the model's config that the tree names, in an order that the config alone decides."""
    return [part for layer in config.layers for part in (layer, layer.mlp)]


def _places(tensors: Sequence[Tensor]) -> tuple[list[int], list[int], int]:
    """Where tensors lie in the file.

    Returns:
        The offset of each; the numbers of those that are written, since the others lie within them as they
        do in memory; and the end.
    """
    order = sorted(range(len(tensors)), key=lambda one: (tensors[one].data_ptr(), -tensors[one].nbytes))
    places, own, end = [0] * len(tensors), list[int](), _BEGIN
    begin = until = at = 0  # the addresses of the last one that is contiguous, and its offset
    for one in order:
        tensor, address = tensors[one], tensors[one].data_ptr()
        if tensor.is_contiguous() and begin <= address and address + tensor.nbytes <= until:
            places[one] = at + address - begin
            continue
        places[one] = -(-end // ALIGNMENT) * ALIGNMENT
        own.append(one)
        end = places[one] + tensor.nbytes
        if tensor.is_contiguous():
            begin, until, at = address, address + tensor.nbytes, places[one]
    return places, own, end


def _checksums(memory: mmap.mmap, end: int, threads: int) -> list[int]:
    with memoryview(memory) as view, ThreadPoolExecutor(max(1, threads)) as pool:

        def checksum(begin: int) -> int:
            with view[begin : min(begin + PIECE, end)] as piece:
                return zlib.crc32(piece)

        return list(pool.map(checksum, range(_BEGIN, end, PIECE)))


def _encode(value: Any, tensors: list[Tensor], configs: Sequence[object]) -> Any:
    if value is None or isinstance(value, bool | str | float) or type(value) is int:
        return value
    if isinstance(value, list):
        return [_encode(one, tensors, configs) for one in value]
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    for number, one in enumerate(configs):
        if one is value:
            return {"config": number}
    name, of = type(value).__name__, _parts(value)
    if name not in _TYPES:
        raise TypeError(f"{name} is no part of packed weights")
    return {"type": name, "of": _encode(of, tensors, configs) if isinstance(of, list) else of}


def _parts(value: Any) -> int | bytes | list[Any]:
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, ctypes.Structure):
        return bytes(value)
    return [getattr(value, one.name) for one in fields(value)] if is_dataclass(value) else list(value)


def _decode(value: Any, tensors: Sequence[Tensor], configs: Sequence[object]) -> Any:
    if isinstance(value, list):
        return [_decode(one, tensors, configs) for one in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "config" in value:
        return configs[value["config"]]
    return _made(_TYPES[value["type"]], _decode(value["of"], tensors, configs))


def _made(kind: type[Any], of: Any) -> Any:
    if issubclass(kind, IntEnum):
        return kind(of)
    if issubclass(kind, ctypes.Structure):
        return kind.from_buffer_copy(of)
    if is_dataclass(kind):
        return kind(**{one.name: part for one, part in zip(fields(kind), of, strict=True)})
    return kind(*of)
