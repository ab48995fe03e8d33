"""Weights with damaged or missing tensors, which reading must refuse."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import Tensor

from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.config.json_fields import ModelError


def check_refused(
    directory: Path, tensors: Mapping[str, Tensor], changed: Mapping[str, Tensor | None], message: str
) -> None:
    """Asserts that these tensors of a model are refused; those that are None are left out."""
    left = {name: one for name, one in {**tensors, **changed}.items() if one is not None}
    save_file(left, directory / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        stored_tensors(directory)
