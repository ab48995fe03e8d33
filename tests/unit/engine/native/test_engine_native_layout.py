"""The layout check of structs shared with the kernels names the field that differs."""

import ctypes
import re
from collections.abc import Sequence

import pytest

from services.worker.engine.native.build import ensure, targets
from services.worker.engine.native.library import SHARED_STRUCTS, LayoutError, check_layout
from services.worker.engine.native.structs.attention import Rotary
from services.worker.engine.native.structs.forward import ForwardBatch
from services.worker.engine.native.structs.ops import Op, OpKind

pytestmark = pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")
Struct = type[ctypes.Structure]
Fields = Sequence[tuple[str, type]]


def changed(struct: Struct, fields: Fields) -> list[Struct]:
    """All structs, where `struct` is replaced by one with the given fields."""
    other = type(struct.__name__, (ctypes.Structure,), {"_fields_": list(fields)})
    return [other if each is struct else each for each in SHARED_STRUCTS]


def fields_of(struct: Struct) -> list[tuple[str, type]]:
    return [(name, kind) for name, kind, *_ in struct._fields_]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(ensure()))


def test_every_kind_of_op_is_a_struct_of_its_own() -> None:
    assert sorted(op.KIND for op in Op.__subclasses__()) == sorted(OpKind)


def test_the_same_layout_is_taken(library: ctypes.CDLL) -> None:
    check_layout(library, SHARED_STRUCTS)


@pytest.mark.parametrize(
    ("struct", "change", "named"),
    [
        (Rotary, lambda f: [f[1], f[0], *f[2:]], "Rotary.sin"),
        (Rotary, lambda f: [*f[:-1], ("clip", ctypes.c_double)], "Rotary.clip"),
        (Rotary, lambda f: f[:-1], "Rotary.clip"),
        (Rotary, lambda f: [*f, ("scale", ctypes.c_float)], "Rotary.scale"),
        (Rotary, lambda f: [("cosines", f[0][1]), *f[1:]], "Rotary.cosines"),
        (ForwardBatch, lambda f: [("num_rows", ctypes.c_int64), *f[1:]], "ForwardBatch.num_rows"),
    ],
)
def test_a_changed_field_is_refused(library: ctypes.CDLL, struct: Struct, change: object, named: str) -> None:
    assert callable(change)
    with pytest.raises(LayoutError, match=f"^{re.escape(named)}: offset and size are .* change both alike"):
        check_layout(library, changed(struct, change(fields_of(struct))))


def test_a_struct_that_python_does_not_have_is_refused(library: ctypes.CDLL) -> None:
    with pytest.raises(LayoutError, match=r"^Rotary\.cos: offset and size are None in native/\*\.py and "):
        check_layout(library, [each for each in SHARED_STRUCTS if each is not Rotary])
