"""Reads the values of an adapter's tensors, and makes the fingerprint of what was read."""

import math
from collections.abc import Iterable
from contextlib import ExitStack
from io import FileIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.worker.adapters.description import AdapterError
from services.worker.adapters.fingerprint import Fingerprint
from services.worker.adapters.stored_pair import NamedTensor
from services.worker.engine.checkpoint.stored_tensor import ITEM_BYTES, StoredTensor
from services.worker.gguf.dequantize import dequantize

Floats = NDArray[np.float32]
_ALIGNED = 16  # floats: a cache line


class TensorValues:
    """Reads the tensors of one adapter; each file is opened once.

    All values lie in one piece of memory, for which numpy asks the system for huge pages. In hundreds of them
    each page of 4 KB would be a fault of its own, and those take longer than the reading.

    Args:
        source: For refusals.
        tensors: All that will be read.
        files: Closes what is opened, and ends the fingerprint's thread.
    """

    def __init__(self, source: Path, tensors: Iterable[NamedTensor], files: ExitStack) -> None:
        self._source = source
        self._open = files
        self._files: dict[Path, FileIO] = {}
        self._fingerprint = files.enter_context(Fingerprint())
        self._memory = np.empty(sum(_room(one.stored) for one in tensors), np.float32)
        self._used = 0

    def finish(self) -> str:
        """Returns the fingerprint of all that was read and noted; values may be changed from now on."""
        return self._fingerprint.finish()

    def note(self, text: str) -> None:
        """Adds what else changes the result to the fingerprint."""
        self._fingerprint.add(f"{text}\0".encode())

    def read(self, tensor: NamedTensor) -> tuple[Floats, float]:
        """The values of a tensor, which must not be changed before `finish`, and their largest magnitude.

        Raises:
            AdapterError: They cannot be read, or are no finite numbers.
        """
        stored = tensor.stored
        values = self._memory[self._used : self._used + math.prod(stored.shape)]
        self._used += _room(stored)
        is_float = stored.blocks is None and stored.kind == "F32"
        data = values.view(np.uint8) if is_float else np.empty(stored.end - stored.begin, np.uint8)
        self._fill(stored, data)
        self.note(f"{stored.kind} {stored.shape}")
        self._fingerprint.add(data)
        if not is_float:
            _convert(tensor.name, stored, data, values)
        largest = max(float(values.max()), -float(values.min()))  # NaN if one is
        if not math.isfinite(largest):
            raise AdapterError(
                f"{self._source}: tensor {tensor.name} has values that are no finite numbers; train or "
                "export it again"
            )
        return values.reshape(stored.shape), largest

    def _fill(self, stored: StoredTensor, data: NDArray[np.uint8]) -> None:
        path = stored.path
        try:
            if path not in self._files:
                self._files[path] = self._open.enter_context(FileIO(path))
            self._files[path].seek(stored.begin)
            left = data.data
            while left:
                count = self._files[path].readinto(left)
                if not count:
                    raise AdapterError(f"{path} has become shorter; load the adapter again")
                left = left[count:]
        except OSError as error:
            raise AdapterError(f"{path} cannot be read: {error.strerror}; check the file") from error


def _room(stored: StoredTensor) -> int:
    """Floats of the memory that a tensor gets."""
    return -(-math.prod(stored.shape) // _ALIGNED) * _ALIGNED


def _convert(name: str, stored: StoredTensor, data: NDArray[np.uint8], values: Floats) -> None:
    """Writes the values of what is stored in another form than fp32."""
    if stored.blocks is not None:
        values[:] = dequantize(data, stored.blocks)
    elif stored.kind == "F16":
        values[:] = data.view(np.float16)
    elif stored.kind == "BF16":
        np.left_shift(data.view(np.uint16), 16, out=values.view(np.uint32), dtype=np.uint32)
    else:
        raise AdapterError(
            f"{stored.path}: tensor {name} has type {stored.kind}, supported: "
            f"{', '.join(sorted(ITEM_BYTES))}; export the adapter as one of these"
        )
