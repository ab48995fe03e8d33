"""Packed integers of compressed-tensors: values bit for bit, any slice, codes; what is refused."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.quality.own_logits import OwnLogits
from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.codes.packed_integers import read_packed
from services.worker.engine.checkpoint.fingerprint import fingerprint
from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.rank_protocol.run_config import Precision
from tests.kits.engine.damaged_tensors import check_refused
from training.quantize.grids import Codes, Grid, plain_scales, round_to
from training.quantize.packing import packed, quantization_config

NAME = "model.layers.0.mlp.down_proj"


def write(tiny: Path, directory: Path, grid: Grid) -> dict[str, Codes]:
    """Writes the model with all linears packed; returns their codes."""
    weights = load_file(tiny / "model.safetensors")
    tensors: dict[str, Tensor] = {}
    codes: dict[str, Codes] = {}
    for name, tensor in weights.items():
        if "proj" not in name:
            tensors[name] = tensor
            continue
        module = name.removesuffix(".weight")
        codes[module] = round_to(tensor, *plain_scales(tensor, grid), grid)
        tensors |= packed(module, codes[module])
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((tiny / "config.json").read_text())
    config["quantization_config"] = quantization_config(dict.fromkeys(codes, grid), ["lm_head"])
    (directory / "config.json").write_text(json.dumps(config))
    return codes


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scale_type", [torch.float16, torch.bfloat16, torch.float32])
def test_values_are_those_of_the_formula(
    tiny: Path, tmp_path: Path, bits: int, symmetric: bool, scale_type: torch.dtype
) -> None:
    made = write(tiny, tmp_path, Grid(bits=bits, group=32, symmetric=symmetric, scale_type=scale_type))
    config = read_config(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        located = checkpoint.table.locate(config)
        for module, codes in made.items():
            name = module + ".weight"
            expected = codes.values()
            shape = tuple(expected.shape)
            assert torch.equal(checkpoint.read_tensor(name, shape), expected)
            part = checkpoint.read_tensor(name, shape, slice(3, 21), slice(40, 60))
            assert torch.equal(part, expected[3:21, 40:60])
            for rows, columns in ((slice(None), slice(None)), (slice(5, 30), slice(32, 64))):
                found = checkpoint.read_codes(located[name], rows, columns)
                if found is None:  # zero points of 8 bits, and no form of theirs is exact
                    assert (bits, symmetric, scale_type) == (8, False, torch.float32)
                    continue
                assert isinstance(found, EncodedMatrix)
                assert found.bits == (bits if symmetric or scale_type != torch.float32 else 8)
                assert torch.equal(found.decode(), expected[rows, columns])
            assert checkpoint.read_codes(located[name], columns=slice(8, 40)) is None


def test_three_bits_may_begin_in_one_word_and_end_in_the_next(tmp_path: Path) -> None:
    draw, outputs, inputs = np.random.default_rng(1), 44, 96
    codes = draw.integers(0, 8, (outputs, inputs), dtype=np.uint8)
    zeros = draw.integers(0, 8, (outputs, 3), dtype=np.uint8)
    scales = torch.rand(outputs, 3).half()

    def words(numbers: NDArray[np.uint8]) -> Tensor:
        stream = (numbers[..., None] >> np.arange(3) & 1).reshape(len(numbers), -1)
        stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
        return torch.from_numpy(np.packbits(stream, axis=1, bitorder="little").view(np.int32))

    tensors = {"packed": words(codes), "zero_point": words(zeros.T).T.contiguous(), "scale": scales}
    tensors["shape"] = torch.tensor([outputs, inputs])
    save_file({f"a.weight_{name}": one for name, one in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    groups = torch.arange(inputs) // 32
    difference = torch.from_numpy(codes).float() - torch.from_numpy(zeros).float()[:, groups]
    expected = scales.float()[:, groups] * difference
    stored = stored_tensors(tmp_path)["a.weight"]
    for rows, columns in ((range(outputs), range(inputs)), (range(33, 42), range(32, 64))):
        found = read_packed(stored, rows, columns)
        assert found is not None
        assert found.bits == 4
        wanted = expected[rows.start : rows.stop, columns.start : columns.stop]
        assert torch.equal(found.decode(), wanted)


@pytest.mark.parametrize("scale_type", [torch.bfloat16, torch.float32])
def test_inputs_may_have_an_order_of_their_own(tiny: Path, tmp_path: Path, scale_type: torch.dtype) -> None:
    codes = write(tiny, tmp_path, Grid(bits=4, group=32, scale_type=scale_type))[NAME]
    order = (torch.arange(160, dtype=torch.int32) // 32)[torch.randperm(160)]
    tensors = load_file(tmp_path / "model.safetensors") | {f"{NAME}.weight_g_idx": order}
    tensors["model.layers.0.mlp.up_proj.weight_g_idx"] = torch.full((64,), -1, dtype=torch.int32)
    save_file(tensors, tmp_path / "model.safetensors")
    zeros, scales = codes.zeros.float()[:, order.long()], codes.scales.float()[:, order.long()]
    expected = scales * (codes.codes.float() - zeros)
    with open_checkpoint(tmp_path) as checkpoint:
        located = checkpoint.table.locate(read_config(tmp_path))[f"{NAME}.weight"]
        assert torch.equal(checkpoint.read_tensor(f"{NAME}.weight", (64, 160)), expected)
        for rows, columns in ((slice(None), slice(None)), (slice(3, 21), slice(40, 77))):
            found = checkpoint.read_codes(located, rows, columns)
            assert found is not None
            assert found.order is not None
            assert torch.equal(found.decode(), expected[rows, columns])


def test_a_model_of_packed_weights_computes_what_its_floats_do(tiny: Path, tmp_path: Path) -> None:
    codes = write(tiny, tmp_path / "packed", Grid(bits=4, group=32))
    (tmp_path / "floats").mkdir()
    (tmp_path / "floats" / "config.json").write_bytes((tiny / "config.json").read_bytes())
    weights = load_file(tiny / "model.safetensors")
    weights |= {f"{module}.weight": each.values() for module, each in codes.items()}
    save_file(weights, tmp_path / "floats" / "model.safetensors")

    def logits(name: str, precision: Precision) -> Tensor:
        source = OwnLogits(tmp_path / name, precision, 1, sequences=1, length=16)
        source.begin(1)
        found = torch.from_numpy(source.feed([[1, 2, 3, 4]]).copy())
        source.close()
        return found

    expected = logits("floats", "fp32")
    assert torch.equal(logits("packed", "fp32"), expected)
    if targets():  # kernels, which multiply codes with activations of 8 bits
        coded = logits("packed", "codes")
        assert 0 < float((coded - expected).norm() / expected.norm()) < 0.03


def test_fingerprints_see_scales_and_codes(tiny: Path, tmp_path: Path) -> None:
    write(tiny, tmp_path, Grid(bits=4, group=32))
    config = read_config(tmp_path)
    first = fingerprint(tmp_path, config)
    for part in ("weight_scale", "weight_packed", "weight_zero_point"):
        tensors = load_file(tmp_path / "model.safetensors")
        changed = tensors[f"{NAME}.{part}"]
        changed.view(-1)[0] += 1
        save_file(tensors, tmp_path / "model.safetensors")
        again = fingerprint(tmp_path, config)
        assert again != first
        first = again


def test_what_is_damaged_or_of_another_form_is_refused(tiny: Path, tmp_path: Path) -> None:
    write(tiny, tmp_path, Grid(bits=4, group=32))
    tensors = load_file(tmp_path / "model.safetensors")

    refused = partial(check_refused, tmp_path, tensors)
    refused({f"{NAME}.weight_scale": None}, "no proper weight_scale and weight_shape")
    refused({f"{NAME}.weight_g_idx": torch.zeros(160)}, "a g_idx is F32")
    refused({f"{NAME}.weight_shape": torch.tensor([64, 0])}, "says 64 x 0")
    refused({f"{NAME}.weight_shape": torch.tensor([64, 999])}, "no matrix of 64 x 999")
    refused({f"{NAME}.weight_zero_point": torch.zeros(1, 5, dtype=torch.int32)}, "the zero points of")
    config = json.loads((tmp_path / "config.json").read_text())
    group = config["quantization_config"]["config_groups"]["group_0"]
    for change in ({"num_bits": 5}, {"type": "float"}):
        broken = {**group, "weights": group["weights"] | change}
        quantized = config["quantization_config"] | {"config_groups": {"group_0": broken}}
        (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": quantized}))
        with pytest.raises(ModelError, match="integer weights of 2, 3, 4 and 8 bits in the form"):
            read_config(tmp_path)
