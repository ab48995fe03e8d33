"""Opens the weight files of a model: a directory with safetensors files, or a GGUF file.

`weight_loader.py` decides which slices of the tensors a rank reads; `slice_reader.py` reads them.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.names.tensor_view import LocatedTensor
from services.worker.engine.checkpoint.slice_reader import OpenTensor, SliceReader, dtype_of
from services.worker.engine.checkpoint.tensor_table import TensorTable, stored_tensors
from services.worker.engine.checkpoint.view_reader import read_view, read_view_codes
from services.worker.engine.config.json_fields import ModelError

_WHOLE = slice(None)


class Checkpoint:
    """Open weight files."""

    def __init__(self, table: TensorTable, files: dict[Path, int]) -> None:
        self.table = table
        self._files = files
        self._reader = SliceReader()

    @property
    def loaded_bytes(self) -> int:
        """Bytes read from the files so far."""
        return self._reader.read_bytes

    def read_tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: slice = _WHOLE,
        columns: slice = _WHOLE,
        dtype: torch.dtype | None = torch.float32,
    ) -> Tensor:
        """A stored tensor of one or two dimensions, or some of its rows or columns.

        Args:
            shape: The whole tensor's shape, as the config demands it.
            rows: Of the first dimension; consecutive.
            columns: Of the second dimension; consecutive.
            dtype: None for the stored one.

        Raises:
            ModelError: As `TensorTable.find`, or the file cannot be read.
        """
        stored = self.table.find(name, shape)
        parts = [range(size)[part] for size, part in zip(shape, (rows, columns), strict=False)]
        out = torch.empty([len(part) for part in parts], dtype=dtype or dtype_of(stored))
        self.read_into(out, name, shape, rows, columns)
        return out

    def read_into(
        self, out: Tensor, name: str, shape: tuple[int, ...], rows: slice = _WHOLE, columns: slice = _WHOLE
    ) -> None:
        """As `read_tensor`, into a contiguous tensor of the slice's shape, converted to its type."""
        stored = self.table.find(name, shape)
        tensor = OpenTensor(name, stored, self._files[stored.path])
        wanted, across = range(shape[0])[rows], range(tensor.width)[columns]
        self._reader.read(tensor, out.view(len(wanted), len(across)), wanted, across)

    def read_located(
        self, out: Tensor, located: LocatedTensor, rows: slice = _WHOLE, columns: slice = _WHOLE
    ) -> None:
        """Reads rows and columns of a canonical tensor into a contiguous one, converted to its type."""
        tensor, wanted, across = self._slice(located, rows, columns)
        part = out.view(len(wanted), len(across))
        read_view(self._reader, tensor, located.view, part, rows=wanted, columns=across)

    def read_codes(
        self, located: LocatedTensor, rows: slice = _WHOLE, columns: slice = _WHOLE
    ) -> EncodedMatrix | None:
        """Rows and columns of a canonical matrix as codes; None if they cannot be held so."""
        tensor, wanted, across = self._slice(located, rows, columns)
        return read_view_codes(self._reader, tensor, located.view, rows=wanted, columns=across)

    def _slice(self, located: LocatedTensor, rows: slice, columns: slice) -> tuple[OpenTensor, range, range]:
        view, stored = located.view, located.stored
        tensor = OpenTensor(view.stored, stored, self._files[stored.path])
        across = range(view.shape[1] if len(view.shape) == 2 else 1)[columns]
        return tensor, range(view.shape[0])[rows], across


@contextmanager
def open_checkpoint(model: Path) -> Iterator[Checkpoint]:
    """Opens all weight files of a model.

    Args:
        model: A directory in Hugging Face format, or a GGUF file.

    Raises:
        ModelError: One is missing or damaged.
    """
    table = TensorTable(model, stored_tensors(model))
    with ExitStack() as stack:
        files: dict[Path, int] = {}
        for path in sorted({stored.path for stored in table.tensors.values()}):
            try:
                files[path] = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise ModelError(f"{path} cannot be read: {error.strerror}") from error
            stack.callback(os.close, files[path])
        yield Checkpoint(table, files)
