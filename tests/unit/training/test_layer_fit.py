"""Learning the codes, scales and norms of layers, of families whose layers are built in different ways."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.read_config import read_config
from tests.kits.families.models import ENTRIES, save_model
from training.quantize.calibration import Calibration, RoundedSource
from training.quantize.grids import Grid, plain_scales, round_to
from training.quantize.layer_fit import LayerFit
from training.quantize.layer_rounding import LayerRounding
from training.quantize.layer_units import layer_units, stored_names
from training.quantize.learned_codes import LearnedCodes
from training.quantize.packing import packed, unpacked

GRID = Grid(bits=4, group=8)
# so coarse that learning gains several percent: of 4 bits it gains less than other arithmetic (bf16) changes
COARSE = Grid(bits=3, group=16)


# norms of queries and keys, windows of attention; fused matrices; biases, an MLP without gates
@pytest.mark.parametrize("family", ["gemma3", "phi3", "phi"])
def test_a_learned_layer_is_closer_to_the_original(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    directory = save_model(ENTRIES[family], tmp_path / "model")
    config = read_config(directory)
    with open_checkpoint(directory) as checkpoint:
        source = open_source(checkpoint, config, SingleRank())
        rounded = RoundedSource(checkpoint, source.collectives, source.tensors)
        calibration = Calibration(source, config, torch.randint(0, config.vocab_size, (128, 48)))
        units = layer_units(config, 0)
        rounding = LayerRounding(rounded, config, 0, units, {unit.name: COARSE for unit in units})
        calibration.aim(source, 0)
        tensors: dict[str, Tensor] = {}
        for name in (name for unit in units for name in stored_names(unit, source.tensors)):
            weight = checkpoint.read_tensor(name, checkpoint.table.tensors[name].shape)
            nearest = round_to(weight, *plain_scales(weight, COARSE), COARSE)
            tensors |= packed(name.removesuffix(".weight"), nearest)
        rounding.replace_weights(tensors)
        start = {name: tensor.clone() for name, tensor in tensors.items()}
        found = rounding.learn(calibration, tensors, 60)
        assert found["end"] < found["start"]
        assert set(tensors) >= set(start)

        rounding.replace_weights(tensors)
        calibration.advance(rounded, 0)
    checked = calibration.checked
    targets, made = calibration.targets[checked], calibration.hidden[checked]
    share = ((made - targets).square().mean(-1) / targets.square().mean(-1)).mean()
    # what is written computes what was learned, but for the precision of the learning
    assert float(share) == pytest.approx(found["end"], rel=0.05)
    for unit in units:
        for name in stored_names(unit, source.tensors):
            module = name.removesuffix(".weight")
            old, new = (unpacked(module, one, COARSE) for one in (start, tensors))
            assert torch.equal(old.zeros, new.zeros)
            assert float((old.codes.float() - new.codes.float()).abs().max()) <= 2


def test_learned_codes_begin_with_what_they_are_given_and_end_in_what_is_stored() -> None:
    torch.manual_seed(1)
    weight, inputs = torch.randn(8, 32), torch.randn(64, 4) @ torch.randn(4, 32)
    start = round_to(weight, *plain_scales(weight, GRID), GRID)
    learned = LearnedCodes(start)
    assert torch.equal(learned.values(torch.float32), start.values())
    again = learned.rounded()
    assert torch.equal(again.codes, start.codes)
    assert torch.equal(again.scales, start.scales)

    def error() -> Tensor:
        return (inputs @ (learned.values(torch.float32) - weight).T).square().mean()

    before = float(error().detach())
    optimizer = torch.optim.Adam(
        [{"params": [learned.shifts], "lr": 0.05}, {"params": [learned.logs], "lr": 1e-3}]
    )
    for _ in range(200):
        optimizer.zero_grad()
        error().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert float(error().detach()) < 0.4 * before
    assert torch.equal(learned.rounded().values(), learned.values(torch.float32).detach())
    assert learned.rounded().scales.dtype == GRID.scale_type


def test_a_layer_that_learning_makes_no_better_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # with real errors, learning from five steps may gain or lose the last digits
    errors = iter([0.5, 0.500001])
    monkeypatch.setattr(LayerFit, "error_of", lambda *_: next(errors))
    torch.manual_seed(0)
    directory = save_model(ENTRIES["gemma3"], tmp_path / "model")
    config = read_config(directory)
    with open_checkpoint(directory) as checkpoint:
        source = open_source(checkpoint, config, SingleRank())
        rounded = RoundedSource(checkpoint, source.collectives, source.tensors)
        calibration = Calibration(source, config, torch.randint(0, config.vocab_size, (8, 16)))
        units = layer_units(config, 0)
        rounding = LayerRounding(rounded, config, 0, units, {unit.name: GRID for unit in units})
        calibration.aim(source, 0)
        tensors, _ = rounding.round(calibration.measure(rounded, 0))
        rounding.replace_weights(tensors)
        start = {name: tensor.clone() for name, tensor in tensors.items()}
        found = rounding.learn(calibration, tensors, 5)
    assert found == {"start": 0.5, "end": 0.5}
    assert all(torch.equal(tensors[name], start[name]) for name in start)
