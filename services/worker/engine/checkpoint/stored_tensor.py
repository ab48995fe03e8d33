"""A tensor in a weight file: what it is called, how it is stored, and where its bytes are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gguf import GGMLQuantizationType

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # of the types that ranks hold as they are; others become fp32

SAMPLES = 8
SAMPLE_BYTES = 256


@dataclass(frozen=True, slots=True)
class PackedParts:
    """What belongs to a matrix of packed integers.

    Attributes:
        bits: Of a code: 2, 3, 4 or 8.
        width: Words of a row.
        scales: [outputs, groups]; of GPTQ and AWQ [groups, outputs].
        zeros: Packed zero points; None: all are `zero`.
        zero: Of all codes, if there are no zero points.
        form: How codes lie: `packed` and `bytes` are those of compressed-tensors, `ternary` BitNet's.
        zeros_above: What zero points are above those that are stored.
        order: The group of each input, int32 [inputs]; None: groups follow each other.
    """

    bits: int
    width: int
    scales: "StoredTensor"
    zeros: "StoredTensor | None"
    zero: int
    form: Literal["packed", "bytes", "ternary", "divided ternary", "gptq", "awq"] = "packed"
    zeros_above: int = 0
    order: "StoredTensor | None" = None

    @property
    def groups(self) -> int:
        """Of the inputs of a row."""
        return self.scales.shape[0 if self.form in {"gptq", "awq"} else 1]

    @property
    def kind(self) -> str:
        """The name of its type."""
        return f"INT{self.bits}"

    @property
    def item_bytes(self) -> float:
        """Of a value, as the kernels store it: a code, and its part of a scale and an offset."""
        held, scale, offset = 4 if self.bits == 3 else self.bits, ITEM_BYTES[self.scales.kind], 0
        if self.zeros is not None and self.scales.kind == "F32":  # zero points are taken from the codes
            held = {2: 4, 3: 4, 4: 8, 8: 32}[self.bits]
        elif self.zeros is not None:
            offset = 4
        inputs = self.width * 32 // self.bits
        groups = self.groups if self.order is None else inputs / 32  # as a part of the inputs may have them
        return held / 8 + (scale + offset) * groups / inputs


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        kind: The format's name of its type.
        begin: Its first byte in the file; rows follow each other.
        end: The byte after its last.
        blocks: Of a GGUF file, if its numbers are stored in blocks with a scale.
        scales: Of a tensor of four-bit floats: the exponents of its blocks, a byte for each 32 values; of a
            matrix of eight-bit floats: those of its blocks.
        block: Outputs and inputs of a scale of eight-bit floats.
        packed: Of a matrix of packed integers.
    """

    path: Path
    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int
    blocks: GGMLQuantizationType | None = None
    scales: "StoredTensor | None" = None
    block: tuple[int, int] = (0, 0)
    packed: PackedParts | None = None

    @property
    def scaled(self) -> bool:
        """Whether it holds codes or small floats with scales."""
        return self.blocks is not None or self.scales is not None or self.packed is not None

    @property
    def coded(self) -> bool:
        """Whether it holds codes with scales, as which it can be held."""
        return self.scaled and not self.block[0]

    @property
    def item_bytes(self) -> int:
        """Of a value, as ranks hold it."""
        return ITEM_BYTES.get(self.kind, 4)

    def samples(self) -> bytes:
        """Some of its bytes, spread evenly, the first and last included."""
        length = self.end - self.begin
        span, parts = max(0, length - SAMPLE_BYTES), []
        with self.path.open("rb") as file:
            for index in range(SAMPLES):
                file.seek(self.begin + span * index // (SAMPLES - 1))
                parts.append(file.read(min(SAMPLE_BYTES, length)))
        return b"".join(parts)


def same_samples(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two tensors have the same type and shape, and the same values as far as samples tell."""
    return (one.kind, one.shape) == (other.kind, other.shape) and one.samples() == other.samples()
