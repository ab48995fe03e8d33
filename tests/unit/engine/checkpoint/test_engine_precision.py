"""What `auto` stands for, and which precisions are refused for a model's files."""

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from services.worker.engine.checkpoint.stored_tensor import StoredTensor
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.precision import SERVED, automatic_precision, require_served, stored_precision
from services.worker.rank_protocol.run_config import Precision


def tensor(kind: str, *shape: int, coded: bool = False) -> StoredTensor:
    blocks = GGMLQuantizationType.Q4_1 if coded else None
    return StoredTensor(Path("m"), kind, shape, 0, 0, blocks=blocks)


NORM = tensor("F32", 64)


@pytest.mark.parametrize(
    ("tensors", "wanted"),
    [
        ([NORM, tensor("F32", 64, 64)], "fp32"),
        ([NORM, tensor("F16", 64, 64)], "fp32"),
        ([NORM, tensor("BF16", 64, 64)], "bf16"),
        ([tensor("BF16", 64), tensor("F32", 64, 64)], "fp32"),
        ([NORM, tensor("BF16", 64, 64), tensor("Q4_1", 64, 64, coded=True)], "codes"),
        ([StoredTensor(Path("m"), "MXFP4", (4, 64, 64), 0, 0, scales=NORM)], "codes"),
    ],
)
def test_files_have_the_precision_of_their_matrices(tensors: list[StoredTensor], wanted: Precision) -> None:
    assert stored_precision(tensors) == wanted


@pytest.mark.parametrize("stored", SERVED)
def test_auto_takes_what_the_files_have_where_kernels_compute(stored: Precision) -> None:
    assert automatic_precision(stored, kernels=True) == stored
    assert automatic_precision(stored, kernels=False) == "fp32"


def test_codes_of_floats_are_refused_with_what_to_take_instead() -> None:
    with pytest.raises(
        ModelError, match="precision=codes is for quantized files, and m holds floats; set pre"
    ):
        require_served("codes", "bf16", "m")
    for precision in SERVED:
        require_served(precision, "codes" if precision == "codes" else "fp32", "m")
