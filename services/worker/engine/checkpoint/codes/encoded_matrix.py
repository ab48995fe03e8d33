"""Weights as codes: the one form in which quantized matrices are held, without loss, until they are packed.

    value[o, i] = fp32(scale[o, g] * (code[o, i] - zero)) - offset[o, g],    g = i // group

Each operation is in fp32 and rounded once, as in the definitions of GGUF's types. With a table,
`table[code]` takes the place of `code - zero`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor

from services.worker.engine.config.json_fields import ModelError

LEAST_GROUP = 16  # inputs; the kernels know this one and multiples of 32


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedMatrix:
    """A matrix [outputs, inputs] as codes.

    Where inputs of a group do not follow each other, columns of the codes are inputs in another order, and
    some may stand for no input; `inputs` below means these columns.

    Attributes:
        codes: uint8 [outputs, inputs], each below 2**bits.
        bits: 2, 4 or 8: how many the kernels store of a code.
        group: Consecutive inputs that share a scale: 16, or a multiple of 32; the last group may be shorter.
        scales: [outputs, groups]; fp16, bf16 or fp32.
        offsets: [outputs, groups], of these types; None: there are none.
        zero: Subtracted from each code.
        table: int8 [16] for codes of 4 bits.
        order: int32 [inputs], the input that a column is, or -1 for none; None: columns are in their order.
    """

    codes: Tensor
    bits: int
    group: int
    scales: Tensor
    offsets: Tensor | None = None
    zero: int = 0
    table: Tensor | None = None
    order: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Of the codes."""
        return self.codes.shape

    def decode(self) -> Tensor:
        """The values, fp32 [outputs, inputs]."""
        if self.table is None:
            units = self.codes.float() - self.zero
        else:
            units = self.table.float()[self.codes.long()]
        values = units * self._each(self.scales)
        if self.offsets is not None:
            values = values - self._each(self.offsets)
        if self.order is None:
            return values
        held = self.order >= 0
        ordered = values.new_empty(len(values), int(held.sum()))
        ordered[:, self.order[held].long()] = values[:, held]
        return ordered

    def _each(self, of_groups: Tensor) -> Tensor:
        return of_groups.float().repeat_interleave(self.group, 1)[:, : self.codes.shape[1]]

    def rows(self, part: slice | Tensor) -> "EncodedMatrix":
        """Some outputs, by a slice or by their numbers."""
        offsets = None if self.offsets is None else self.offsets[part]
        return replace(self, codes=self.codes[part], scales=self.scales[part], offsets=offsets)

    def columns(self, part: range) -> "EncodedMatrix | None":
        """Consecutive inputs. Groups are cut smaller where the first one is within a group.

        Returns:
            None: A part of a group would have fewer than 16 inputs, or inputs have another order.
        """
        if self.order is not None:
            return None
        if self.scales.shape[1] == 1:  # of whole rows
            return replace(self, codes=self.codes[:, part.start : part.stop])
        begin = part.start % self.group
        group = gcd(begin, self.group) if begin else self.group
        if group % LEAST_GROUP or (group != LEAST_GROUP and group % 32):
            return None
        positions = torch.arange(part.start, max(part.stop, part.start + 1), group) // self.group
        offsets = None if self.offsets is None else self.offsets[:, positions]
        codes = self.codes[:, part.start : part.stop]
        return replace(self, codes=codes, group=group, scales=self.scales[:, positions], offsets=offsets)

    @classmethod
    def joined(cls, parts: Sequence["EncodedMatrix"]) -> "EncodedMatrix":
        """The outputs of several matrices below each other, in the form that holds all of them exactly.

        Their inputs have one order (`have_one_order`).

        Raises:
            ModelError: No form does.
        """
        if len(parts) == 1:
            return parts[0]
        if any(part.table is not None for part in parts) and not _have_one_table(parts):
            parts = [part._without_table() for part in parts]
        if len({part.zero for part in parts}) > 1:
            shifted = all(part._can_have_zero_128() for part in parts)
            parts = [part._with_zero_128() if shifted else part._with_zero_0() for part in parts]
        group = gcd(*(part.group for part in parts))
        parts = [part._with_group(group) for part in parts]
        offsets = None
        if any(part.offsets is not None for part in parts):
            offsets = _joined([part._some_offsets() for part in parts])
        return replace(
            parts[0],
            codes=torch.cat([part.codes for part in parts]),
            bits=max(part.bits for part in parts),
            scales=_joined([part.scales for part in parts]),
            offsets=offsets,
        )

    def _some_offsets(self) -> Tensor:
        return torch.zeros_like(self.scales) if self.offsets is None else self.offsets

    def _without_table(self) -> "EncodedMatrix":
        if self.table is None:
            return self
        codes = (self.table.short() + 128).to(torch.uint8)[self.codes.long()]
        return replace(self, codes=codes, bits=8, zero=128, table=None)

    def _can_have_zero_128(self) -> bool:
        least, most = self.zero - 128, self.zero + 127  # codes that remain bytes when they are shifted
        codes = self.codes.short()
        return not bool(((codes < least) | (codes > most)).any())

    def _with_zero_0(self) -> "EncodedMatrix":
        """With the zero in the offsets, which is exact for scales of 16 bits."""
        if self.zero == 0:
            return self
        if self.offsets is not None or self.scales.dtype == torch.float32:
            raise ModelError(
                f"no form of codes holds joined matrices exactly, one of which has codes of 8 bits with zero "
                f"{self.zero}; serve the model with --precision fp32"
            )
        return replace(self, zero=0, offsets=self.scales.float() * self.zero)

    def _with_zero_128(self) -> "EncodedMatrix":
        shifted = (self.codes.short() + (128 - self.zero)).to(torch.uint8)
        return replace(self, codes=shifted, bits=8, zero=128)

    def _with_group(self, group: int) -> "EncodedMatrix":
        if group == self.group:
            return self
        positions = torch.arange(0, self.codes.shape[1], group) // self.group
        offsets = None if self.offsets is None else self.offsets[:, positions]
        return replace(self, group=group, scales=self.scales[:, positions], offsets=offsets)


Matrix = Tensor | EncodedMatrix


def decoded(matrix: Matrix) -> Tensor:
    """A matrix as floats."""
    return matrix.decode() if isinstance(matrix, EncodedMatrix) else matrix


def have_one_order(parts: Sequence[EncodedMatrix]) -> bool:
    """Whether the inputs of all are in the same order."""
    first, others = parts[0].order, [part.order for part in parts[1:]]
    if first is None:
        return all(other is None for other in others)
    return all(other is not None and torch.equal(other, first) for other in others)


def same_form(parts: Sequence[EncodedMatrix]) -> list[EncodedMatrix]:
    """Matrices of the same number of outputs, each in the form that holds all of them."""
    rows, whole = parts[0].shape[0], EncodedMatrix.joined(parts)
    return [whole.rows(slice(begin, begin + rows)) for begin in range(0, whole.shape[0], rows)]


def _have_one_table(parts: Sequence[EncodedMatrix]) -> bool:
    first = parts[0].table
    return first is not None and all(
        part.table is not None and torch.equal(part.table, first) for part in parts[1:]
    )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    kinds = {part.dtype for part in parts}
    kind = kinds.pop() if len(kinds) == 1 else torch.float32
    return torch.cat([part.to(kind) for part in parts])
