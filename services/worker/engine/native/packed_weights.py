"""Weight matrices packed in the order in which the kernels read them, and aligned buffers.

Everything here owns its memory; a program holds the addresses.
"""

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import LEAST_GROUP, EncodedMatrix, Matrix
from services.worker.engine.huge_pages import zeros
from services.worker.engine.int8 import SCALE_BLOCK
from services.worker.engine.native.library import KernelLibrary
from services.worker.engine.native.structs.rows import OutputRule
from services.worker.engine.native.structs.weights import CodeForm, CodeKind, ScaleType, WeightType
from services.worker.rank_protocol.run_config import Precision

LANES = 16  # floats that a kernel handles at a time; vectors are padded to a multiple

STORED_TYPES = {torch.float32: WeightType.F32, torch.bfloat16: WeightType.BF16, torch.float16: WeightType.F16}

# what other precisions make of floats, and the type that the packing takes
_PACKED_AS: dict[Precision, WeightType] = {"bf16": WeightType.BF16_PAIRS, "int8": WeightType.INT8}
_GIVEN_AS = {WeightType.BF16_PAIRS: torch.bfloat16, WeightType.INT8: torch.float32}

_SCALE_TYPES = {
    torch.float32: ScaleType.F32,
    torch.bfloat16: ScaleType.BF16,
    torch.float16: ScaleType.F16,
}
_KINDS = {2: CodeKind.TWO_BITS, 4: CodeKind.FOUR_BITS, 8: CodeKind.EIGHT_BITS}


def padded(count: int, to: int = LANES) -> int:
    """The next multiple."""
    return -(-count // to) * to


def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros, aligned to cache lines."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    return torch.from_numpy(zeros(size)).view(dtype).view(shape)


def vector(values: Tensor, length: int = 0) -> Tensor:
    """A copy of a vector in fp32, padded with zeros to `length` or a multiple of sixteen."""
    result = buffer(length or padded(len(values)))
    result[: len(values)] = values
    return result


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight matrix [outputs, inputs] in panels.

    Attributes:
        weights: The panels, with the scales of byte weights.
        bias: As long as the panels.
        type: How weights are stored.
        inputs: Columns of the matrix.
        order: int32, a column of the source for each of the inputs, padded, or -1 for a zero; None: they are
            the source's.
        columns: Outputs of a row; half of the matrix's if it is gated.
        rule: What is done to the sums. If it is gated, gate rows and the up rows that they gate lie side by
            side in each panel.
    """

    weights: Tensor
    bias: Tensor | None
    type: WeightType
    inputs: int
    panels: int
    columns: int
    rule: OutputRule
    form: CodeForm = field(default_factory=CodeForm)
    order: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that a pass over it reads."""
        return self.weights.numel()


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """The embedding of a rank's token ids.

    Attributes:
        stored: Floats, [ids, hidden]; or codes in panels, which may be those of the head.
        first_id: The first token id of this rank.
    """

    stored: Tensor | PackedLinear
    first_id: int
    num_ids: int
    columns: int


def pack(
    kernels: KernelLibrary,
    weight: Matrix,
    bias: Tensor | None = None,
    *,
    precision: Precision,
    rule: OutputRule | None = None,
) -> PackedLinear:
    """Packs [outputs, inputs] of any floating type.

    Args:
        kernels: They define the panels.
        weight: As stored; codes stay codes.
        bias: [outputs], fp32.
        precision: Of floats: `bf16` stores pairs, `int8` bytes with a scale for each output and 32 inputs;
            otherwise they keep their type.
        rule: What is done to the sums; None: nothing. If it is gated, the first half of the outputs gates the
            second.
    """
    columns, rule = weight.shape[0], rule or OutputRule()
    if rule.gated:
        columns //= 2
        bias = None if bias is None else _side_by_side(bias, columns)
        if isinstance(weight, EncodedMatrix):
            weight = _codes_side_by_side(weight, columns)
        else:
            weight = _side_by_side(weight, columns)
    outputs, inputs = weight.shape
    panels, order = -(-outputs // kernels.panel), None
    if isinstance(weight, EncodedMatrix):
        kind, form = WeightType.CODES, code_form(weight)
        if weight.order is not None:
            order = F.pad(weight.order, (0, padded(inputs) - inputs), value=-1).contiguous()
        packed = _pack_codes(kernels, weight, form)
    else:
        packed_as = _PACKED_AS.get(precision)
        kind, form = packed_as or STORED_TYPES[weight.dtype], CodeForm()
        source = (weight.to(_GIVEN_AS[packed_as]) if packed_as else weight).contiguous()
        packed = buffer(kernels.packed_bytes(outputs, inputs, kind, None), dtype=torch.uint8)
        kernels.pack(source.data_ptr(), outputs, inputs, kind, packed.data_ptr(), torch.get_num_threads())
    return PackedLinear(
        weights=packed,
        bias=None if bias is None else vector(bias, panels * kernels.panel),
        type=kind,
        inputs=inputs,
        panels=panels,
        columns=columns,
        rule=rule,
        form=form,
        order=order,
    )


def code_form(matrix: EncodedMatrix) -> CodeForm:
    """The description of a matrix of codes for the kernels."""
    form = CodeForm(
        kind=_KINDS[matrix.bits] if matrix.table is None else CodeKind.FOUR_BIT_TABLE,
        # a row is padded to whole blocks
        group=min(matrix.group, max(LEAST_GROUP, padded(matrix.shape[1], SCALE_BLOCK))),
        scales=_SCALE_TYPES[matrix.scales.dtype],
        offsets=ScaleType.NONE if matrix.offsets is None else _SCALE_TYPES[matrix.offsets.dtype],
        zero=matrix.zero,
    )
    if matrix.table is not None:
        form.table[:] = matrix.table.tolist()
    return form


def _pack_codes(kernels: KernelLibrary, matrix: EncodedMatrix, form: CodeForm) -> Tensor:
    outputs, inputs = matrix.shape
    packed = buffer(kernels.packed_bytes(outputs, inputs, WeightType.CODES, form), dtype=torch.uint8)
    sides = [matrix.codes, matrix.scales, matrix.offsets]
    whole = [None if side is None else side.contiguous() for side in sides]
    addresses = [0 if side is None else side.data_ptr() for side in whole]
    kernels.pack_codes(*addresses, outputs, inputs, form, packed.data_ptr(), torch.get_num_threads())
    return packed


def _codes_side_by_side(matrix: EncodedMatrix, half: int) -> EncodedMatrix:
    offsets = None if matrix.offsets is None else _side_by_side(matrix.offsets, half)
    return replace(
        matrix,
        codes=_side_by_side(matrix.codes, half),
        scales=_side_by_side(matrix.scales, half),
        offsets=offsets,
    )


def _side_by_side(fused: Tensor, half: int) -> Tensor:
    """[gate rows, up rows, ...] -> sixteen gate rows, the sixteen up rows that they gate, and so on."""
    missing = padded(half) - half
    tail = (0, 0) * (fused.dim() - 1)
    parts = [F.pad(part, (*tail, 0, missing)) for part in (fused[:half], fused[half:])]
    shape = (-1, LANES, *fused.shape[1:])
    return torch.stack([part.view(shape) for part in parts], dim=1).flatten(0, 2)
