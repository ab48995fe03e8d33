"""Finds and opens the weight files of a model: a directory with safetensors files, or a GGUF file.

`weight_loader.py` decides which slices of the tensors a rank reads; `slice_reader.py` reads them.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from services.worker.engine.checkpoint.gguf_tensors import gguf_tensors
from services.worker.engine.checkpoint.json_fields import ModelError, read_json
from services.worker.engine.checkpoint.safetensors_file import read_header
from services.worker.engine.checkpoint.slice_reader import OpenTensor, SliceReader
from services.worker.engine.checkpoint.stored_tensor import TYPES, StoredTensor
from services.worker.gguf.gguf_file import is_gguf
from services.worker.json_files import MAX_INDEX_BYTES, shown

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_WHOLE = slice(None)


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model directory, sorted by name.

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


def stored_tensors(model: Path) -> dict[str, StoredTensor]:
    """All tensors of a model by Hugging Face's names.

    Args:
        model: A directory in Hugging Face format, or a GGUF file.

    Raises:
        ModelError: A file is missing or damaged.
    """
    if is_gguf(model):
        return gguf_tensors(model)
    tensors: dict[str, StoredTensor] = {}
    for path in weight_files(model):
        for name, tensor in read_header(path).items():
            if name in tensors:
                raise ModelError(f"{path}: tensor {name} is in {tensors[name].path.name} as well; remove one")
            tensors[name] = tensor
    return tensors


class Checkpoint:
    """Open weight files.

    Attributes:
        model: The model's directory or file.
        tensors: By name.
        config_name: What describes the model's shape, for refusals.
    """

    def __init__(self, model: Path, tensors: dict[str, StoredTensor], files: dict[Path, int]) -> None:
        self.model = model
        self.tensors = tensors
        self.config_name = "its metadata" if is_gguf(model) else "config.json"
        self._files = files
        self._reader = SliceReader()

    @property
    def loaded_bytes(self) -> int:
        """Bytes read from the files so far."""
        return self._reader.read_bytes

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
            raise ModelError(f"{self.model}: tensor {name} is in none of the weight files")
        if stored.shape != shape:
            raise ModelError(
                f"{stored.path}: tensor {name} has shape {stored.shape}, {self.config_name} demands {shape}"
            )
        if stored.kind not in TYPES and (stored.blocks is None or len(shape) != 2):
            supported = ", ".join(sorted(TYPES))
            if stored.blocks is not None:
                supported += ", because it is no matrix"
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
        out = torch.empty([len(part) for part in parts], dtype=dtype or stored.dtype)
        self.read_into(out, name, shape, rows, columns)
        return out

    def read_into(
        self, out: Tensor, name: str, shape: tuple[int, ...], rows: slice = _WHOLE, columns: slice = _WHOLE
    ) -> None:
        """As `read_tensor`, into a contiguous tensor of the slice's shape, converted to its type."""
        stored = self.find_tensor(name, shape)
        tensor = OpenTensor(name, stored, self._files[stored.path])
        wanted, across = range(shape[0])[rows], range(tensor.width)[columns]
        self._reader.read(tensor, out.view(len(wanted), len(across)), wanted, across)


@contextmanager
def open_checkpoint(model: Path) -> Iterator[Checkpoint]:
    """Opens all weight files of a model.

    Args:
        model: A directory in Hugging Face format, or a GGUF file.

    Raises:
        ModelError: One is missing or damaged.
    """
    tensors = stored_tensors(model)
    with ExitStack() as stack:
        files: dict[Path, int] = {}
        for path in sorted({stored.path for stored in tensors.values()}):
            try:
                files[path] = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise ModelError(f"{path} cannot be read: {error.strerror}") from error
            stack.callback(os.close, files[path])
        yield Checkpoint(model, tensors, files)
