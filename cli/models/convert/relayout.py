"""Lays out the tensors of a model as another format has them, one stored tensor at a time.

Both formats are described by views (`checkpoint/names/`) of the same canonical tensors, so a conversion knows
no family: it reads canonical tensors through the views of one format and puts them together by those of the
other one. Values are moved as they are; only quantized ones become F32.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from cli.models.convert.tensor_stream import FLOATS, Array, read_bytes, to_kind
from services.worker.engine.checkpoint.names.tensor_view import LocatedTensor, TensorView
from services.worker.engine.checkpoint.stored_tensor import StoredTensor
from services.worker.gguf.dequantize import can_dequantize
from services.worker.gguf.header_bytes import BadGguf

F32 = GGMLQuantizationType.F32
_NORMS = "norm.weight"


@dataclass(frozen=True, slots=True)
class MovedTensor:
    """A canonical tensor on its way.

    Attributes:
        shift: Added to its values: formats differ in whether norms hold w of (1 + w).
    """

    source: LocatedTensor
    target: TensorView
    shift: float


@dataclass(frozen=True, slots=True)
class TargetTensor:
    """A tensor of the new files.

    Attributes:
        kind: The float type that holds all values of the tensors that it is made from.
        parts: The canonical tensors that it is made from.
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    parts: tuple[MovedTensor, ...]

    @property
    def num_bytes(self) -> int:
        """Return the bytes that are read for it."""
        tensors = {
            (part.source.stored.path, part.source.stored.begin): part.source.stored for part in self.parts
        }
        return sum(stored.end - stored.begin for stored in tensors.values())

    def read(self) -> Array:
        """Return its bytes, in rows: [rows, bytes].

        Raises:
            BadGguf: A file cannot be read, or has become shorter.
        """
        item = np.uint32 if self.kind == F32 else np.uint16
        whole: NDArray[Any] = np.empty(self.shape, item)
        last: tuple[StoredTensor, NDArray[Any]] | None = None
        for part in self.parts:
            stored = part.source.stored
            if last is None or last[0] != stored:
                last = stored, _values(stored, self.kind, item)
            view, found = part.source.view, last[1]
            values = (found.T if view.transposed else found)[_row_order(view)]
            if part.shift:
                values = (values.view(np.float32) + np.float32(part.shift)).view(item)
            target = whole if part.target.index is None else whole[part.target.index]
            target = target.T if part.target.transposed else target
            target[_row_order(part.target)] = values
        rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        return whole.reshape(rows, -1).view(np.uint8)


def relayout(
    located: Mapping[str, LocatedTensor], views: Mapping[str, TensorView], shift: float
) -> list[TargetTensor]:
    """Return the tensors of the new files.

    Args:
        located: The canonical tensors where they lie.
        views: Where the new files have them; of the same names.
        shift: Added to the weights of norms.

    Raises:
        BadGguf: A tensor has a type that is not converted.
    """
    moved: dict[str, list[MovedTensor]] = {}
    for name, view in views.items():
        own = shift if name.endswith(_NORMS) else 0.0
        moved.setdefault(view.stored, []).append(MovedTensor(located[name], view, own))
    return [
        TargetTensor(name, parts[0].target.stored_shape, _common_kind(parts), tuple(parts))
        for name, parts in moved.items()
    ]


def _common_kind(parts: list[MovedTensor]) -> GGMLQuantizationType:
    kinds = {F32 if part.shift else _float_kind(part.source) for part in parts}
    return kinds.pop() if len(kinds) == 1 else F32


def _float_kind(source: LocatedTensor) -> GGMLQuantizationType:
    stored = source.stored
    kind = None if stored.scales is not None else GGMLQuantizationType.__members__.get(stored.kind)
    if kind is None or not (kind in FLOATS or can_dequantize(kind)):
        raise BadGguf(
            f"{stored.path}: tensor {source.view.stored} has the type {stored.kind}, which is not converted"
        )
    return kind if kind in FLOATS else F32


def _values(stored: StoredTensor, kind: GGMLQuantizationType, item: type[Any]) -> NDArray[Any]:
    rows = read_bytes(stored.path, stored.begin, stored.end)
    rows = rows.reshape(int(np.prod(stored.shape[:-1], dtype=np.int64)), -1)
    values: NDArray[Any] = to_kind(rows, GGMLQuantizationType[stored.kind], kind).view(item)
    return values.reshape(stored.shape)


def _row_order(view: TensorView) -> "NDArray[np.int64] | slice":
    """Return which rows of the stored tensor the rows of a canonical one are, in their order."""
    count = view.shape[0]
    if view.pairs is None and view.stride == view.width:
        return slice(view.first, view.first + count)
    order = np.arange(count)
    if view.pairs is not None:  # of the rows of a head those that are rotated lie next to each other
        head, first, size = view.pairs.head, view.pairs.first, view.pairs.count
        half, row = np.divmod(np.arange(size), size // 2)
        order.reshape(-1, head)[:, first : first + size] = (
            np.arange(0, count, head)[:, None] + first + 2 * row + half
        )
    group, within = np.divmod(order, view.width)
    return view.first + group * view.stride + within
