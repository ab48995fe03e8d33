"""Every quantized type of GGUF as codes: the values are those of the `gguf` package, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.codes.gguf_codes import encoded, has_codes
from services.worker.engine.config.json_fields import ModelError

TYPES = [kind for kind in GGMLQuantizationType if has_codes(kind)]
ROWS, COLUMNS = 6, 512
JOINED = [
    ("Q4_K", "Q6_K"), ("Q4_0", "Q4_1", "Q8_0"), ("IQ4_NL", "Q5_0"), ("TQ2_0", "Q2_K"), ("MXFP4", "IQ4_NL"),
    ("IQ4_NL", "IQ4_XS"), ("Q4_0", "Q4_0"),
]  # fmt: skip


def random_matrix(kind: GGMLQuantizationType, seed: int) -> tuple[EncodedMatrix, torch.Tensor]:
    """Random blocks with finite scales of all sizes, as codes and as the package's floats."""
    block, size = GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(seed).integers(0, 256, (ROWS, COLUMNS // block * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        values = torch.from_numpy(quants.dequantize(data, kind))
    return encoded(data.reshape(-1), kind, ROWS), values


def test_all_types_of_the_issue_are_known() -> None:
    names = {kind.name for kind in TYPES}
    wanted = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 TQ1_0 TQ2_0"
    assert names == set(wanted.split())


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_values_are_those_of_the_package(kind: GGMLQuantizationType) -> None:
    for seed in range(5):
        matrix, values = random_matrix(kind, seed)
        assert int(matrix.codes.max()) < 1 << matrix.bits
        found = matrix.decode()
        finite = torch.isfinite(values)
        assert finite.float().mean() > 0.7
        assert torch.equal(found[finite], values[finite])
        assert not torch.isfinite(found[~finite]).any()


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_rows_and_columns_are_those_of_the_values(kind: GGMLQuantizationType) -> None:
    matrix, values = random_matrix(kind, 7)
    values = torch.where(torch.isfinite(values), values, 0.0)

    def same(part: EncodedMatrix, wanted: torch.Tensor) -> bool:
        found = part.decode()
        return torch.equal(torch.where(torch.isfinite(found), found, 0.0), wanted)

    assert same(matrix.rows(slice(2, 5)), values[2:5])
    assert same(matrix.rows(torch.tensor([3, 0, 3])), values[[3, 0, 3]])
    for part in (range(512), range(32, 96), range(256, 500), range(96, 352), range(16, 48)):
        cut = matrix.columns(part)
        assert cut is not None
        assert same(cut, values[:, part.start : part.stop])
    assert matrix.columns(range(8, 64)) is None
    assert matrix.columns(range(3, 64)) is None


def test_matrices_of_different_types_are_joined_without_loss() -> None:
    for seed, names in enumerate(JOINED):
        parts = [random_matrix(GGMLQuantizationType[name], seed) for name in names]
        joined = EncodedMatrix.joined([part for part, _ in parts])
        values = torch.cat([value for _, value in parts])
        finite = torch.isfinite(values)
        assert torch.equal(joined.decode()[finite], values[finite])
        assert joined.bits <= (4 if names[0][:3] in {"IQ4", "Q4_"} and names[0][:3] == names[-1][:3] else 8)


def test_codes_of_eight_bits_with_different_zeros_are_joined_without_loss() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(1, 256)
    scales = torch.tensor([[0.37, 1.3, 0.011, 7.0, 0.5, 3.1, 0.9, 2.2]], dtype=torch.float16)
    plain = EncodedMatrix(codes=every, bits=8, group=32, scales=scales, zero=128)
    shifted = EncodedMatrix(
        codes=every, bits=8, group=32, scales=scales, offsets=scales.float() * torch.arange(31, 39)
    )
    for parts in ((plain, shifted), (shifted, plain)):
        joined = EncodedMatrix.joined(parts)
        assert torch.equal(joined.decode(), torch.cat([part.decode() for part in parts]))
    with pytest.raises(ModelError, match="zero 128"):
        EncodedMatrix.joined((replace(plain, scales=scales.float()), shifted))
