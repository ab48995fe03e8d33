"""The matrices of a layer's experts as one tensor, as GGUF files have them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType

from cli.models.convert.tensor_stream import Array, SourceTensor
from services.worker.gguf.header_bytes import BadGguf

_EXPERT = re.compile(r"(?P<before>.*\.experts)\.(?P<number>\d+)\.(?P<after>[^.]+\.weight)")


@dataclass(frozen=True, slots=True)
class StackedTensor:
    """Tensors of one shape and type, one after another.

    Attributes:
        name: That of the parts without their numbers.
        parts: In their order.
    """

    name: str
    parts: tuple[SourceTensor, ...]

    @property
    def kind(self) -> GGMLQuantizationType:
        """Return their type."""
        return self.parts[0].kind

    @property
    def shape(self) -> tuple[int, ...]:
        """Return [parts, out, in]."""
        return len(self.parts), *self.parts[0].shape

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all where they lie."""
        return sum(part.num_bytes for part in self.parts)

    def read(self) -> Array:
        """Return the bytes, in rows: [rows, bytes].

        Raises:
            BadGguf: A file cannot be read, or has become shorter.
        """
        return np.concatenate([part.read() for part in self.parts])


def stack_experts(tensors: Iterable[SourceTensor]) -> list[SourceTensor | StackedTensor]:
    """Return the tensors, those of a layer's experts at the place of the first of them.

    Raises:
        BadGguf: Experts are missing, or differ in type or shape.
    """
    found = dict[str, SourceTensor | dict[int, SourceTensor]]()
    for tensor in tensors:
        match = _EXPERT.fullmatch(tensor.name)
        if match is None:
            found[tensor.name] = tensor
            continue
        parts = found.setdefault(f"{match['before']}.{match['after']}", {})
        assert isinstance(parts, dict)
        parts[int(match["number"])] = tensor
    return [one if isinstance(one, SourceTensor) else _stacked(name, one) for name, one in found.items()]


def _stacked(name: str, parts: dict[int, SourceTensor]) -> StackedTensor:
    ordered = tuple(parts[number] for number in sorted(parts))
    kinds = {(part.kind, part.shape) for part in ordered}
    if sorted(parts) != list(range(len(parts))) or len(kinds) > 1:
        raise BadGguf(
            f"{ordered[0].path}: the tensors {name} of experts are missing or differ in type or shape"
        )
    return StackedTensor(name, ordered)
