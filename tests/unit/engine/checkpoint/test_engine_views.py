"""Views of stored tensors: exact values, each byte read once over all ranks, and sizes of what is loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.engine.checkpoint.memory_check import cache_bytes
from services.worker.engine.checkpoint.model_size import model_size, weight_share
from services.worker.engine.checkpoint.names.tensor_view import RowPairs, TensorView
from services.worker.engine.checkpoint.slice_reader import OpenTensor, SliceReader
from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.checkpoint.view_reader import read_view
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import (
    load_embedding,
    load_final_norm,
    load_head,
    load_head_bias,
    load_layer,
    load_positions,
    open_source,
)
from services.worker.engine.collectives.base import Collectives
from tests.kits.engine.rank_threads import run_threads
from tests.kits.families.models import family_model

ROWS, COLUMNS = 24, 5


def _view(stored: tuple[int, ...], changes: dict[str, Any]) -> TensorView:
    shape = (ROWS, COLUMNS)
    fields: dict[str, Any] = {"stored": "t", "shape": shape, "stored_shape": stored, "width": ROWS}
    return TensorView(**(fields | {"stride": ROWS} | changes))


@pytest.mark.parametrize(
    ("stored", "view", "wanted"),
    [
        ((60, 5), {"first": 30}, lambda t: t[30:54]),
        ((60, 5), {"first": 2, "width": 4, "stride": 10}, lambda t: t.view(6, 10, 5)[:, 2:6].flatten(0, 1)),
        ((48, 5), {"first": 1, "width": 1, "stride": 2}, lambda t: t[1::2]),
        ((5, 24), {"transposed": True}, lambda t: t.T),
        ((5, 48), {"transposed": True, "first": 1, "width": 1, "stride": 2}, lambda t: t.T[1::2]),
        ((3, 24, 5), {"index": 2}, lambda t: t[2]),
        (
            (24, 5),
            {"pairs": RowPairs(8, 2, 4)},
            lambda t: t.view(3, 8, 5)[:, [0, 1, 2, 4, 3, 5, 6, 7]].flatten(0, 1),
        ),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_tensors(
    tmp_path: Path,
    stored: tuple[int, ...],
    view: dict[str, Any],
    wanted: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
) -> None:
    whole = torch.randn(stored).to(dtype)
    save_file({"t": whole}, tmp_path / "model.safetensors")
    found, expected = _view(stored, view), wanted(whole).float()
    part = found.part_of(stored_tensors(tmp_path)["t"])
    with (tmp_path / "model.safetensors").open("rb") as file:
        for rows in (range(24), range(8, 24)):
            for columns in (range(5), range(1, 3)):
                out = torch.empty(len(rows), len(columns))
                tensor = OpenTensor("t", part, file.fileno())
                read_view(SliceReader(), tensor, found, out, rows=rows, columns=columns)
                assert torch.equal(out, expected[rows.start : rows.stop, columns.start : columns.stop])


@pytest.mark.parametrize(
    "name", ["phi3", "gpt_neox", "glm", "stablelm, parallel", "cohere", "granitemoe", "deepseek_v3"]
)
@pytest.mark.parametrize("world", [1, 3])
def test_fused_and_stacked_files_are_read_once(name: str, world: int) -> None:
    model = family_model(name)

    def work(collectives: Collectives) -> int:
        with open_checkpoint(model.directory) as checkpoint:
            source = open_source(checkpoint, model.config, collectives)
            load_embedding(source, model.config)
            load_positions(source, model.config)
            for index in range(model.config.num_layers):
                load_layer(source, model.config, index)
            load_final_norm(source, model.config)
            if not model.config.tied_embeddings:
                load_head(source, model.config)
            load_head_bias(source, model.config)
            return checkpoint.loaded_bytes

    stored = load_file(model.directory / "model.safetensors")
    assert sum(run_threads(world, work)) == sum(tensor.nbytes for tensor in stored.values())
    # sizes are counted from the config alone
    assert model_size(model.config).parameters == sum(tensor.numel() for tensor in stored.values())
    parts = [weight_share(model.config, [rank], world) for rank in range(world)]
    assert sum(parts) >= 1
    assert sum(parts) == 1 or model.config.latent


def test_caches_of_windows_and_latent_vectors() -> None:
    latent, sliding = family_model("deepseek_v3").config, family_model("gemma3").config
    assert cache_bytes(latent, 1, 160) == 3 * (24 + 8) * 160 * 4
    assert cache_bytes(latent, 3, 160) == 3 * cache_bytes(latent, 1, 160)  # every rank has it
    whole = cache_bytes(sliding, 1, 160)
    assert cache_bytes(sliding, 1, 160, num_sliding=4) == whole / 3 + whole * 2 / 3 * 4 / 10
