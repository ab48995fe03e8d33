"""Reads tensors, or slices of them, from the safetensors files of a model directory.

`weight_loader.py` decides which slices a rank reads. Only the bytes of these slices are read, directly into
the finished tensor or through a small buffer. Files are not mapped, so a rank's memory is that of its
weights, and a file that shrinks meanwhile raises an error instead of a signal.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.checkpoint.json_fields import ModelError, read_json
from services.worker.engine.checkpoint.safetensors_file import TYPES, StoredTensor, read_header
from services.worker.json_files import MAX_INDEX_BYTES, shown

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
BUFFER_BYTES = 1 << 22  # most bytes of one read through the buffer, unless a row is longer
_WHOLE = slice(None)


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model, sorted by name.

    Raises:
        ModelError: There are none, or the index names one that is missing.
    """
    index = directory / INDEX
    if not index.exists():
        if not (directory / SINGLE).is_file():
            raise ModelError(f"{directory} holds neither {SINGLE} nor {INDEX}")
        return [directory / SINGLE]
    weight_map = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: `weight_map` must map tensor names to file names")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            raise ModelError(f"{index} names {shown(name)}, which is no file beside it")
    return [directory / name for name in names]


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """All tensors of a model by name.

    Raises:
        ModelError: A file is missing or damaged.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in weight_files(directory):
        for name, tensor in read_header(path).items():
            if name in tensors:
                raise ModelError(f"{path}: tensor {name} is in {tensors[name].path.name} as well; remove one")
            tensors[name] = tensor
    return tensors


class Checkpoint:
    """Open weight files.

    Attributes:
        directory: Of the model.
        tensors: By name.
        loaded_bytes: Bytes read from the files so far.
    """

    def __init__(self, directory: Path, tensors: dict[str, StoredTensor], files: dict[Path, int]) -> None:
        self.directory = directory
        self.tensors = tensors
        self.loaded_bytes = 0
        self._files = files
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def find_tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """Finds a tensor and checks its shape and type.

        Args:
            name: As in the file.
            shape: The whole tensor's shape, as the config demands it.

        Raises:
            ModelError: The tensor is missing, or has another shape or a type that is not supported.
        """
        stored = self.tensors.get(name)
        if stored is None:
            raise ModelError(f"{self.directory}: tensor {name} is in none of the weight files")
        if stored.shape != shape:
            raise ModelError(
                f"{stored.path}: tensor {name} has shape {stored.shape}, config.json demands {shape}"
            )
        if stored.kind not in TYPES:
            supported = ", ".join(sorted(TYPES))
            raise ModelError(f"{stored.path}: tensor {name} has type {stored.kind}, supported: {supported}")
        return stored

    def read_tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: slice = _WHOLE,
        columns: slice = _WHOLE,
        dtype: torch.dtype | None = torch.float32,
    ) -> Tensor:
        """A tensor of one or two dimensions, or some of its rows or columns.

        Args:
            name: As in the file.
            shape: The whole tensor's shape, as the config demands it.
            rows: Of the first dimension; consecutive.
            columns: Of the second dimension; consecutive.
            dtype: None for the stored one.

        Raises:
            ModelError: As `find_tensor`, or the file cannot be read.
        """
        stored = self.find_tensor(name, shape)
        parts = [range(size)[part] for size, part in zip(shape, (rows, columns), strict=False)]
        out = torch.empty([len(part) for part in parts], dtype=dtype or TYPES[stored.kind])
        self.read_into(out, name, shape, rows, columns)
        return out

    def read_into(
        self, out: Tensor, name: str, shape: tuple[int, ...], rows: slice = _WHOLE, columns: slice = _WHOLE
    ) -> None:
        """As `read_tensor`, into a contiguous tensor of the slice's shape, converted to its type."""
        stored = self.find_tensor(name, shape)
        dtype, file = TYPES[stored.kind], self._files[stored.path]
        width = shape[1] if len(shape) == 2 else 1
        wanted, across = range(shape[0])[rows], range(width)[columns]
        target = out.view(len(wanted), len(across))
        step = max(1, BUFFER_BYTES // (len(across) * dtype.itemsize))
        if target.dtype == dtype and len(across) == width:
            step = max(1, len(wanted))  # one read, in place
        for begin in range(0, len(wanted), step):
            part = target[begin : begin + step]
            buffer = part if part.dtype == dtype else self._buffer(part.shape, dtype)
            lines: NDArray[np.uint8] = buffer.view(torch.uint8).numpy()
            offset = stored.begin + (wanted[begin] * width + across.start) * dtype.itemsize
            if len(across) == width:
                _fill(file, lines.reshape(-1), offset, stored, name)
            else:
                for index, line in enumerate(lines):
                    _fill(file, line, offset + index * width * dtype.itemsize, stored, name)
            if buffer is not part:
                part.copy_(buffer)
            self.loaded_bytes += lines.nbytes

    def _buffer(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """A view of one reused buffer: many short-lived ones would leave holes between the weights."""
        size = shape.numel() * dtype.itemsize
        if size > len(self._scratch):
            self._scratch = torch.empty(size, dtype=torch.uint8)
        return self._scratch[:size].view(dtype).view(shape)


def _fill(file: int, memory: NDArray[np.uint8], offset: int, stored: StoredTensor, name: str) -> None:
    """Fills the memory with bytes of the file; one system call reads 2 GiB at most."""
    view = memory.data
    while view:
        try:
            count = os.preadv(file, [view], offset)
        except OSError as error:
            raise ModelError(f"{stored.path}: tensor {name} cannot be read: {error.strerror}") from error
        if count == 0:
            raise ModelError(f"{stored.path} has become shorter while tensor {name} was read; copy it again")
        view, offset = view[count:], offset + count


@contextmanager
def open_checkpoint(directory: Path) -> Iterator[Checkpoint]:
    """Opens all weight files of a directory.

    Raises:
        ModelError: One is missing or damaged.
    """
    tensors = stored_tensors(directory)
    with ExitStack() as stack:
        files: dict[Path, int] = {}
        for path in weight_files(directory):
            try:
                files[path] = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise ModelError(f"{path} cannot be read: {error.strerror}") from error
            stack.callback(os.close, files[path])
        yield Checkpoint(directory, tensors, files)
