"""`ryz quantize` on the demo model: errors of the ways, the files, an interrupted run, sizes, refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.stack.model_dir import demo_model
from services.worker.engine.config.json_fields import ModelError
from training.quantize.bit_plan import UnitCost, choose_bits
from training.quantize.candidates import Moments, input_scales, output_error, round_best
from training.quantize.gptq import gptq
from training.quantize.grids import Codes, Grid, best_scales, plain_scales, round_to
from training.quantize.packing import packed, quantization_config, unpacked
from training.quantize.quantizer import Progress, QuantizePlan, Quantizer

MODES = {"nearest", "gptq", "awq"}


def plan(**changed: Any) -> QuantizePlan:
    options: dict[str, Any] = {"model": demo_model(), "samples": 32, "length": 256, "steps": 0}
    return QuantizePlan(**options | changed)


def tensors_of(directory: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Progress]]:
    output, seen = tmp_path_factory.mktemp("quantized") / "demo", list[Progress]()
    with Quantizer(plan()) as quantizer:
        quantizer.run(output, seen.append)
    return output, seen


def test_gptq_and_awq_change_outputs_less_than_rounding_to_nearest(made: tuple[Path, list[Progress]]) -> None:
    facts = [one.facts["units"] for one in made[1] if one.facts]
    assert len(facts) == 4
    for unit in ("qkv", "output", "gate_up", "down"):
        errors = [layer[unit]["errors"] for layer in facts]
        assert set(errors[0]) >= MODES
        nearest = sum(one["nearest"] for one in errors)
        assert sum(one["gptq"] for one in errors) < 0.8 * nearest
        assert sum(one["awq"] for one in errors) < nearest
        for layer in facts:
            assert layer[unit]["errors"][layer[unit]["way"]] == min(layer[unit]["errors"].values())


def test_the_files_hold_what_the_config_says(made: tuple[Path, list[Progress]]) -> None:
    output, _ = made
    tensors, config = tensors_of(output), json.loads((output / "config.json").read_text())
    (group,) = config["quantization_config"]["config_groups"].values()
    assert group["weights"]["num_bits"] == 4
    assert group["weights"]["group_size"] == 32
    originals = tensors_of(demo_model())
    grid = Grid(bits=4, group=32, scale_type=tensors["model.layers.0.mlp.up_proj.weight_scale"].dtype)
    modules = [name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")]
    assert len(modules) == 4 * 7
    for module in modules:
        codes = unpacked(module, tensors, grid)
        again = packed(module, codes)
        assert all(torch.equal(tensors[name], tensor) for name, tensor in again.items())
        if module.endswith("q_proj"):  # no factors here unless the norm has them
            weight = originals[module + ".weight"].float()
            norm = module.replace("self_attn.q_proj", "input_layernorm.weight")
            factors = originals[norm].float() / tensors[norm].float()
            change = codes.values() / factors - weight
            assert float(change.norm() / weight.norm()) < 0.15
    index = json.loads((output / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == set(tensors)
    assert torch.equal(tensors["model.embed_tokens.weight"], originals["model.embed_tokens.weight"])


def test_an_interrupted_run_writes_what_an_unbroken_one_does(tiny: Path, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def stop(step: Progress) -> None:
        if step.done == 3:  # two layers are measured, one is written
            raise Interrupted

    small = {"model": tiny, "length": 32, "samples": 4, "steps": 3, "mean_bits": 5.2}
    with Quantizer(plan(**small)) as quantizer:
        quantizer.run(tmp_path / "whole", lambda _: None)
    with pytest.raises(Interrupted), Quantizer(plan(**small)) as quantizer:
        quantizer.run(tmp_path / "out", stop)
    assert not (tmp_path / "out" / "config.json").exists()
    kept = (tmp_path / "out" / "layer-00000.safetensors").stat().st_mtime_ns
    more: list[Progress] = []
    with Quantizer(plan(**small)) as quantizer:
        quantizer.run(tmp_path / "out", more.append)
    assert not [step for step in more if "measuring" in step.what]
    assert (tmp_path / "out" / "layer-00000.safetensors").stat().st_mtime_ns == kept
    ours, whole = tensors_of(tmp_path / "out"), tensors_of(tmp_path / "whole")
    assert set(ours) == set(whole)
    assert all(torch.equal(ours[name], whole[name]) for name in whole)
    with pytest.raises(ModelError, match="other options"), Quantizer(plan(**small, group=8)) as quantizer:
        quantizer.run(tmp_path / "out", lambda _: None)


def test_a_size_gives_more_bits_to_some(tiny: Path, tmp_path: Path) -> None:
    steps: list[Progress] = []
    floats = sum(one.nbytes for name, one in tensors_of(tiny).items() if "proj" not in name)
    matrices = sum(one.numel() for name, one in tensors_of(tiny).items() if "proj" in name)
    most = floats + matrices * 7 // 8  # bytes; 4 bits with scales and zero points take 0.58 each, 8 bits 1.1
    with Quantizer(plan(model=tiny, num_bytes=most, samples=4, length=32)) as quantizer:
        quantizer.run(tmp_path / "out", steps.append)
    bits = [one["bits"] for step in steps if step.facts for one in step.facts["units"].values()]
    assert set(bits) == {4, 8}
    written = sum(one.nbytes for name, one in tensors_of(tmp_path / "out").items() if "shape" not in name)
    assert 0.9 * most < written <= most
    groups = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"][
        "config_groups"
    ]
    assert sorted(one["weights"]["num_bits"] for one in groups.values()) == [4, 8]
    assert all(one["targets"][0].startswith("re:^model") for one in groups.values())


def test_a_mean_of_bits_is_kept(tiny: Path, tmp_path: Path) -> None:
    steps: list[Progress] = []
    with Quantizer(plan(model=tiny, mean_bits=5.2, samples=4, length=32)) as quantizer:
        quantizer.run(tmp_path / "out", steps.append)
    tensors = tensors_of(tmp_path / "out")
    counts = sum(one.numel() for name, one in tensors_of(tiny).items() if "proj" in name)
    taken = sum(one.nbytes for name, one in tensors.items() if "proj" in name and "shape" not in name)
    assert 4.7 < 8 * taken / counts <= 5.2
    bits = [one["bits"] for step in steps if step.facts for one in step.facts["units"].values()]
    assert set(bits) == {4, 8}


def test_bits_go_where_the_outputs_of_a_layer_lose_most(tiny: Path, tmp_path: Path) -> None:
    """Values that cannot be rounded well are put into one unit."""
    torch.manual_seed(5)
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    tensors = tensors_of(tiny)
    wide = tensors["model.layers.1.mlp.down_proj.weight"]
    wide.copy_(torch.randn_like(wide.float()) * 3)
    wide[:, ::32] *= 40  # one large value in each group
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    steps: list[Progress] = []
    with Quantizer(plan(model=broken, mean_bits=5.3, samples=4, length=32)) as quantizer:
        quantizer.run(tmp_path / "out", steps.append)
    units = [step.facts["units"] for step in steps if step.facts]
    assert units[1]["down"]["bits"] == 8


def test_bits_are_shared_out_by_what_a_byte_gains() -> None:
    costs = [
        UnitCost((0, "qkv"), {4: 10, 8: 20}, {4: 0.5, 8: 0.1}),
        UnitCost((1, "qkv"), {4: 10, 8: 20}, {4: 0.9, 8: 0.1}),
        UnitCost((2, "qkv"), {4: 10, 8: 30}, {4: 1.0, 8: 0.0}),
    ]
    assert choose_bits(costs, 45) == {(0, "qkv"): 4, (1, "qkv"): 8, (2, "qkv"): 4}
    assert choose_bits(costs, 70) == {(0, "qkv"): 8, (1, "qkv"): 8, (2, "qkv"): 8}
    with pytest.raises(ModelError, match="5 bytes too small for 4 bits"):
        choose_bits(costs, 25)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_codes_survive_the_files(bits: int, symmetric: bool) -> None:
    torch.manual_seed(1)
    grid = Grid(bits=bits, group=32, symmetric=symmetric)
    weight = torch.randn(36, 96)  # outputs that fill no whole word of zero points
    codes = round_to(weight, *best_scales(weight, torch.ones(96), grid), grid)
    again = unpacked("m", packed("m", codes), grid)
    for name in ("codes", "scales", "zeros"):
        assert torch.equal(getattr(codes, name), getattr(again, name))
    assert codes.codes.max() > grid.middle > codes.codes.min()
    assert float((again.values() - weight).abs().max()) < (0.6 if bits == 4 else 0.04)


def test_better_scales_lose_less_and_symmetric_ones_use_the_whole_range() -> None:
    torch.manual_seed(2)
    weight, importance = torch.randn(64, 128), torch.rand(128)
    for symmetric in (False, True):
        grid = Grid(bits=4, group=32, symmetric=symmetric)

        def lost(codes: Codes) -> float:
            return float(((codes.values() - weight).square() * importance).sum())

        best = lost(round_to(weight, *best_scales(weight, importance, grid), grid))
        assert best < 0.95 * lost(round_to(weight, *plain_scales(weight, grid), grid))


def test_gptq_of_independent_inputs_is_rounding_and_of_dependent_ones_is_better() -> None:
    torch.manual_seed(3)
    weight, grid = torch.randn(16, 64), Grid(bits=4, group=32)
    alone = gptq(weight, torch.eye(64), grid)
    rounded = round_to(weight, *best_scales(weight, torch.ones(64), grid), grid)
    assert torch.equal(alone.codes, rounded.codes)
    inputs = torch.randn(512, 8) @ torch.randn(8, 64) + 0.1 * torch.randn(512, 64)
    moments = inputs.T @ inputs
    fitted = output_error(weight, gptq(weight, moments, grid).values(), moments)
    assert fitted < 0.3 * output_error(weight, rounded.values(), moments)
    assert fitted == pytest.approx(
        float((inputs @ (weight - gptq(weight, moments, grid).values()).T).square().sum()), rel=1e-3
    )


def test_awq_enlarges_the_columns_of_large_inputs_by_powers_of_two() -> None:
    torch.manual_seed(4)
    inputs = torch.randn(256, 64)
    inputs[:, 5] *= 50
    weight, grid, moments = torch.randn(32, 64), Grid(bits=4, group=32), inputs.T @ inputs
    factors = input_scales(weight, moments, grid)
    assert factors is not None
    assert factors[5] == factors.max() > 1
    assert torch.equal(factors.log2(), factors.log2().round())
    found = round_best([weight[:16], weight[16:]], Moments(moments, moments), grid, scalable=True)
    assert found.errors["awq"] < 0.7 * found.errors["nearest"]
    assert [len(one.codes) for one in found.codes] == [16, 16]
    assert found.errors["awq+gptq"] <= found.errors["gptq"]


def test_one_grid_targets_all_linears() -> None:
    config = quantization_config({"a": Grid(), "b": Grid()}, ["lm_head"])
    assert config["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert config["ignore"] == ["lm_head"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bits", "3"], "--bits is 4 or 8"),
        (["--size", "many"], "--size takes bytes such as 120MB"),
        (["--group", "80"], "--group 80 does not divide"),
        (["--mean-bits", "4.7", "--size", "1KB", "--samples", "2", "--length", "16"], "too small for 4 bits"),
        (["--samples", "4096", "--length", "400"], "give a longer --text or fewer --samples"),
        (["--text", "/nowhere.txt"], "/nowhere.txt cannot be read"),
    ],
)
def test_refusals_name_the_remedy(tiny: Path, tmp_path: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["quantize", str(tiny), "-o", str(tmp_path / "out"), *options])
    assert isinstance(result.exception, CommandError), result.output
    assert result.exception.exit_code == 2
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_model_and_what_was_lost(tiny: Path, tmp_path: Path) -> None:
    options = ["--samples", "4", "--length", "64", "--symmetric", "--steps", "2"]
    result = CliRunner().invoke(app, ["quantize", str(tiny), "-o", str(tmp_path / "out"), *options])
    assert result.exit_code == 0, result.exception
    assert "lost to nearest" in result.stdout
    assert "Errors of whole layers, learned" in result.stdout
    assert not [path for path in tmp_path.iterdir() if path.name != "out"]
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1
    assert not any(name.endswith("zero_point") for name in tensors_of(tmp_path / "out"))
    again = CliRunner().invoke(
        app, ["quantize", str(tmp_path / "out"), "-o", str(tmp_path / "more"), *options]
    )
    assert "is quantized already" in str(again.exception)
    over = CliRunner().invoke(app, ["quantize", str(tiny), "-o", str(tmp_path / "out"), *options])
    assert "There is a model in" in str(over.exception)
