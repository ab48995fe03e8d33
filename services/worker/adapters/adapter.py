"""Reads an adapter: its matrices under the base's canonical names, checked against it, and a fingerprint."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from services.worker.adapters.base_model import BaseModel
from services.worker.adapters.description import AdapterDescription, AdapterError
from services.worker.adapters.gguf_files import gguf_pairs
from services.worker.adapters.peft_files import peft_tensors
from services.worker.adapters.stored_pair import NamedTensor, StoredPair
from services.worker.adapters.targets import HEAD, ROW_PARALLEL, Target, find_parts, find_targets
from services.worker.adapters.tensor_values import Floats, TensorValues
from services.worker.gguf.gguf_file import read_gguf
from services.worker.gguf.header_bytes import BadGguf

_LARGEST = float(np.finfo(np.float32).max)


class Matrices(NamedTuple):
    """What is added to a matrix: `up @ down`, both fp32, with the scale in `up`.

    With a `magnitude` each row of the sum is then scaled to this norm (DoRA; Liu et al., arXiv 2402.09353).
    """

    down: Floats  # [r, inputs]
    up: Floats  # [outputs, r]
    magnitude: Floats | None = None  # [outputs]


@dataclass(frozen=True, slots=True)
class AdapterFiles:
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


def read_adapter(source: Path, base: BaseModel) -> AdapterFiles:
    """Reads and checks an adapter.

    Args:
        source: A PEFT directory, or a GGUF file.

    Raises:
        AdapterError: It cannot be served with this base; one sentence.
    """
    found, whole = _open(source, base)
    with ExitStack() as files:
        return _read_all(source, found, whole, TensorValues(source, _tensors(found, whole), files))


def _read_all(
    source: Path, found: "_Targets", whole: NamedTensor | None, values: TensorValues
) -> AdapterFiles:
    pairs: list[tuple[StoredPair, list[Target], Matrices]] = []
    for pair, targets in found:
        values.note(f"{pair.module}\0{pair.scale!r}")
        (down, largest_down), (up, largest_up) = values.read(pair.down), values.read(pair.up)
        _require_bounded(source, pair, largest_down * largest_up)
        magnitude = None
        if pair.magnitude is not None:
            magnitude, largest = values.read(pair.magnitude)
            _require_bounded_norm(source, pair, largest)
        pairs.append((pair, targets, Matrices(down, up, magnitude)))
    head = None
    if whole is not None:
        values.note("the whole head")
        head, largest = values.read(whole)
        if largest * head.shape[1] > _LARGEST:
            raise AdapterError(f"{source}: the logits of its head are beyond fp32; train it again")
    fingerprint, matrices = values.finish(), dict[tuple[int, str], Matrices]()
    for pair, targets, (down, up, magnitude) in pairs:
        up *= np.float32(pair.scale)  # noqa: PLW2901 (in its memory)
        for target in targets:
            rows = up if target.rows is None else np.ascontiguousarray(up[target.rows])
            norms = magnitude
            if norms is not None and target.rows is not None:
                norms = norms[target.rows]
            matrices[target.layer, target.module] = Matrices(down, rows, norms)
    return AdapterFiles(fingerprint, matrices, head)


def _tensors(found: "_Targets", whole: NamedTensor | None) -> Iterator[NamedTensor]:
    for pair, _ in found:
        yield from (pair.down, pair.up)
        if pair.magnitude is not None:
            yield pair.magnitude
    if whole is not None:
        yield whole


_Targets = list[tuple[StoredPair, list[Target]]]


def _open(source: Path, base: BaseModel) -> tuple[_Targets, NamedTensor | None]:
    """The pairs with their targets, and the head that replaces the base's."""
    try:
        if source.is_dir():
            found = peft_tensors(source, base)
            parts = base.parts(frozenset(pair.module for pair in found.pairs))
            return find_targets(source, found.pairs, parts, base.config), found.head
        if not source.exists():
            raise AdapterError(f"{source} does not exist; give a PEFT directory or a GGUF file")
        file = read_gguf(source, vocabulary=False)
    except BadGguf as error:
        raise AdapterError(str(error)) from error
    except (OSError, ValueError) as error:  # ValueError: a null byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise AdapterError(f"{source} cannot be read: {reason}; check the adapter's path") from error
    pairs = gguf_pairs(file)
    parts = find_parts([pair.module for pair in pairs], base.gguf_names(file), base.config)
    return find_targets(source, pairs, parts, base.config), None


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
