"""Reads an adapter: its matrices under the base's canonical names, checked against it, and a fingerprint."""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.worker.adapters.base_model import BaseModel
from services.worker.adapters.description import AdapterDescription, AdapterError
from services.worker.adapters.gguf_files import gguf_pairs
from services.worker.adapters.peft_files import peft_tensors
from services.worker.adapters.stored_pair import NamedTensor, StoredPair
from services.worker.adapters.targets import HEAD, ROW_PARALLEL, Target, find_targets
from services.worker.engine.checkpoint.stored_tensor import ITEM_BYTES, StoredTensor
from services.worker.gguf.dequantize import dequantize
from services.worker.gguf.gguf_file import read_gguf
from services.worker.gguf.header_bytes import BadGguf

Floats = NDArray[np.float32]
FINGERPRINT_CHARS = 32  # 128 bits: no two adapters share one by chance or by intent
_LARGEST = float(np.finfo(np.float32).max)


class Matrices(NamedTuple):
    """What is added to a matrix: `up @ down`, both fp32, with the scale in `up`.

    With a `magnitude` each row of the sum is then scaled to this norm (DoRA; Liu et al., arXiv 2402.09353).
    """

    down: Floats  # [r, inputs]
    up: Floats  # [outputs, r]
    magnitude: Floats | None = None  # [outputs]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter whose files were read.

    Attributes:
        matrices: By layer and canonical module; of the head by layer -1.
        head: fp32 [tokens, hidden], in place of the base's head; None: that stays.
    """

    fingerprint: str
    matrices: Mapping[tuple[int, str], Matrices]
    head: Floats | None = None

    @property
    def has_magnitudes(self) -> bool:
        """Whether rows are scaled to norms of their own (DoRA)."""
        return any(one.magnitude is not None for one in self.matrices.values())

    def describe(self, ranks: int = 1) -> AdapterDescription:
        """What a leader wants to know, of a group with so many ranks."""
        modules = {module for _, module in self.matrices}
        values = 0
        if self.head is not None:
            modules.add(HEAD)
            values += self.head.size
        for (_, module), pair in self.matrices.items():
            # each rank has the whole of the matrix that is not cut
            cut, whole = (pair.down, pair.up) if module in ROW_PARALLEL else (pair.up, pair.down)
            values += cut.size + ranks * whole.size
            if pair.magnitude is not None:
                values += pair.magnitude.size * (ranks if module in ROW_PARALLEL else 1)
        largest = max(len(pair.down) for pair in self.matrices.values())
        return AdapterDescription(self.fingerprint, largest, 4 * values, tuple(sorted(modules)))


def read_adapter(source: Path, base: BaseModel) -> Adapter:
    """Reads and checks an adapter.

    Args:
        source: A PEFT directory, or a GGUF file.

    Raises:
        AdapterError: It cannot be served with this base; one sentence.
    """
    with ExitStack() as files:
        return _read_all(source, base, _Values(source, files))


def _read_all(source: Path, base: BaseModel, values: "_Values") -> Adapter:
    matrices: dict[tuple[int, str], Matrices] = {}
    found, whole = _open(source, base)
    for pair, targets in found:
        values.note(f"{pair.module}\0{pair.scale!r}")
        (down, largest_down), (up, largest_up) = values.read(pair.down), values.read(pair.up)
        _require_bounded(source, pair, largest_down * largest_up)
        up = up * np.float32(pair.scale)
        magnitude = None
        if pair.magnitude is not None:
            magnitude, largest = values.read(pair.magnitude)
            _require_bounded_norm(source, pair, largest)
        for target in targets:
            rows = up if target.rows is None else np.ascontiguousarray(up[target.rows])
            norms = magnitude
            if norms is not None and target.rows is not None:
                norms = norms[target.rows]
            matrices[target.layer, target.module] = Matrices(down, rows, norms)
    head = None
    if whole is not None:
        values.note("the whole head")
        head, largest = values.read(whole)
        if largest * head.shape[1] > _LARGEST:
            raise AdapterError(f"{source}: the logits of its head are beyond fp32; train it again")
    return Adapter(values.fingerprint, matrices, head)


_Targets = list[tuple[StoredPair, list[Target]]]


def _open(source: Path, base: BaseModel) -> tuple[_Targets, NamedTensor | None]:
    """The pairs with their targets, and the head that replaces the base's."""
    try:
        if source.is_dir():
            found = peft_tensors(source, base)
            return find_targets(source, found.pairs, base.names, base.config), found.head
        if not source.exists():
            raise AdapterError(f"{source} does not exist; give a PEFT directory or a GGUF file")
        file = read_gguf(source, vocabulary=False)
    except BadGguf as error:
        raise AdapterError(str(error)) from error
    except (OSError, ValueError) as error:  # ValueError: a null byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise AdapterError(f"{source} cannot be read: {reason}; check the adapter's path") from error
    return find_targets(source, gguf_pairs(file), base.gguf_names(file), base.config), None


class _Values:
    """Reads the values of tensors, and makes the fingerprint of what was read; each file is opened once."""

    def __init__(self, source: Path, files: ExitStack) -> None:
        self._source = source
        self._open = files
        self._files: dict[Path, FileIO] = {}
        # processors of the last years have instructions for it: 0.55 ns a byte, where BLAKE2b takes 1.3
        self._digest = sha256()

    @property
    def fingerprint(self) -> str:
        """Of all that was read and noted."""
        return self._digest.hexdigest()[:FINGERPRINT_CHARS]

    def note(self, text: str) -> None:
        """Adds what else changes the result to the fingerprint."""
        self._digest.update(f"{text}\0".encode())

    def read(self, tensor: NamedTensor) -> tuple[Floats, float]:
        """The values of a tensor, and the largest magnitude of them.

        Raises:
            AdapterError: They cannot be read, or are no finite numbers.
        """
        stored = tensor.stored
        data = self._bytes(stored)
        self.note(f"{stored.kind} {stored.shape}")
        self._digest.update(data.data)
        values = _floats(tensor.name, stored, data).reshape(stored.shape)
        largest = max(float(values.max()), -float(values.min()))  # NaN if one is
        if not math.isfinite(largest):
            raise AdapterError(
                f"{self._source}: tensor {tensor.name} has values that are no finite numbers; train or "
                "export it again"
            )
        return values, largest

    def _bytes(self, stored: StoredTensor) -> NDArray[np.uint8]:
        path, data = stored.path, np.empty(stored.end - stored.begin, np.uint8)
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
        return data


def _floats(name: str, stored: StoredTensor, data: NDArray[np.uint8]) -> Floats:
    if stored.blocks is not None:
        return dequantize(data, stored.blocks)
    if stored.kind == "F32":
        return data.view(np.float32)
    if stored.kind == "F16":
        return data.view(np.float16).astype(np.float32)
    if stored.kind == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise AdapterError(
        f"{stored.path}: tensor {name} has type {stored.kind}, supported: {', '.join(sorted(ITEM_BYTES))}; "
        "export the adapter as one of these"
    )


def _require_bounded(source: Path, pair: StoredPair, bound: float) -> None:
    """Refuses what is not finite for inputs of ordinary size.

    Args:
        bound: Of the product of both matrices' largest values.
    """
    added = abs(pair.scale) * pair.rank * bound * pair.down.stored.shape[1]
    if added > _LARGEST:
        raise AdapterError(
            f"{source}: what module {pair.module} adds is beyond fp32 (scale {pair.scale:g}); check its "
            "alpha, or train it again"
        )


def _require_bounded_norm(source: Path, pair: StoredPair, largest: float) -> None:
    """Refuses a magnitude with which outputs are not finite for inputs of ordinary size."""
    if largest * pair.down.stored.shape[1] > _LARGEST:
        raise AdapterError(
            f"{source}: the magnitude of module {pair.module} is {largest:g}, with which outputs are beyond "
            "fp32; train it again"
        )
