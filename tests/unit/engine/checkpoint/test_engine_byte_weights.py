"""Weights of a byte or less: values bit for bit, any slice, codes, what a model computes; what is refused."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.engine.checkpoint.fingerprint import fingerprint
from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.engine.precision import stored_precision
from tests.kits.engine.damaged_tensors import check_refused
from tests.kits.models.quantized_models import require_same_logits, write_floats, write_quantized

NAME = "model.layers.0.mlp.down_proj"
BLOCK = 48  # divides neither dimension of any matrix
Parts = tuple[dict[str, Tensor], Tensor]


def compressed(form: str, kind: str, **weights: Any) -> dict[str, Any]:
    """The entry of `config.json` for weights of compressed-tensors with quantized activations."""
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": kind, **weights},
        "input_activations": {"num_bits": 8, "type": kind, "dynamic": True, "strategy": "token"},
    }
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


INT8, FP8 = compressed("int-quantized", "int"), compressed("float-quantized", "float")
BLOCKS = compressed("float-quantized", "float", strategy="block", block_structure=[BLOCK, BLOCK])
FINE = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
BITNET = {"quant_method": "bitnet", "linear_class": "bitlinear", "quantization_mode": "offline"}


def integers(
    scale_shape: Callable[[int, int], tuple[int, ...]], scale_type: torch.dtype, *, zeros: bool
) -> Any:
    """Random signed bytes with scales and zero points of a shape."""

    def quantize(tensor: Tensor, seed: int) -> Parts:
        draw = torch.Generator().manual_seed(seed)
        outputs, inputs = tensor.shape
        shape = scale_shape(outputs, inputs)
        held = torch.randint(-128, 128, (outputs, inputs), generator=draw, dtype=torch.int8)
        scales = ((torch.rand(shape, generator=draw) + 0.5) * tensor.float().std() / 64).to(scale_type)
        zero = torch.randint(-9, 10, shape, generator=draw, dtype=torch.int8)
        each = [
            part.float().view(-1, shape[-1]).repeat_interleave(inputs // shape[-1], 1)
            for part in (scales, zero)
        ]
        values = each[0] * (held.float() - (each[1] if zeros else 0))
        return {"weight": held, "weight_scale": scales} | (
            {"weight_zero_point": zero} if zeros else {}
        ), values

    return quantize


def floats(suffix: str, scale_shape: Callable[[int, int], tuple[int, ...]], scale_type: torch.dtype) -> Any:
    """Random floats of eight bits with scales of a shape."""

    def quantize(tensor: Tensor, seed: int) -> Parts:
        draw = torch.Generator().manual_seed(seed)
        outputs, inputs = tensor.shape
        shape = scale_shape(outputs, inputs)
        kind = torch.float8_e5m2 if suffix == "e5m2" else torch.float8_e4m3fn
        held = torch.randn(outputs, inputs, generator=draw).mul(40).to(kind)
        scales = (torch.rand(shape, generator=draw) + 0.5) * tensor.float().std() / 40
        scales = scales.to(scale_type)
        whole = shape if len(shape) == 2 else (1, 1)
        sizes = (BLOCK, BLOCK) if scale_shape is blocks_of else (outputs // whole[0], inputs // whole[1])
        spread = scales.float().view(whole).repeat_interleave(sizes[0], 0).repeat_interleave(sizes[1], 1)
        name = "weight_scale_inv" if suffix == "inv" else "weight_scale"
        values = held.float() * spread[:outputs, :inputs]
        return {"weight": held, name: scales, "input_scale": torch.ones(1)}, values

    return quantize


def ternary(tensor: Tensor, seed: int) -> Parts:
    """Random ternary weights; a byte has those of four outputs that are a quarter of the matrix apart."""
    draw = torch.Generator().manual_seed(seed)
    held = torch.randint(-1, 2, tensor.shape, generator=draw)
    codes = (held + 1).to(torch.uint8).view(4, -1, tensor.shape[1])
    packed = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6
    scale = (1 / tensor.float().std()).to(torch.bfloat16).view(1)
    return {"weight": packed, "weight_scale": scale}, held * (1 / scale.float())


def blocks_of(outputs: int, inputs: int) -> tuple[int, int]:
    return -(-outputs // BLOCK), -(-inputs // BLOCK)


def rows_of(outputs: int, inputs: int) -> tuple[int, int]:
    return outputs, 1


def groups_of(outputs: int, inputs: int) -> tuple[int, int]:
    return outputs, inputs // 32


def one_of(outputs: int, inputs: int) -> tuple[int, ...]:
    return (1,)


BF16, F32 = torch.bfloat16, torch.float32
# how weights are quantized, the config's entry, and the bits of a code
FORMS: dict[str, tuple[Any, dict[str, Any], int | None]] = {
    "int8": (integers(rows_of, BF16, zeros=False), INT8, 8),
    "int8, one scale": (integers(one_of, F32, zeros=False), INT8, 8),
    "int8, groups": (integers(groups_of, F32, zeros=False), INT8, 8),
    "int8, zero points": (integers(rows_of, BF16, zeros=True), INT8, 8),
    "int8, one zero point": (integers(one_of, BF16, zeros=True), INT8, 8),
    "int8, zero points that do not fit": (integers(rows_of, F32, zeros=True), INT8, None),
    "fp8": (floats("", rows_of, BF16), FP8, None),
    "fp8, one scale": (floats("e5m2", one_of, F32), FP8, None),
    "fp8, blocks": (floats("", blocks_of, BF16), BLOCKS, None),
    "fp8, fine-grained": (floats("inv", blocks_of, F32), FINE, None),
    "fp8, powers of two": (floats("inv", blocks_of, torch.float8_e8m0fnu), FINE, None),
    "ternary": (ternary, BITNET, 2),
}


@pytest.mark.parametrize("name", FORMS)
def test_values_are_those_of_the_formula(tiny: Path, tmp_path: Path, name: str) -> None:
    quantize, quantization, bits = FORMS[name]
    made = write_quantized(tiny, tmp_path, quantize, quantization)
    config = read_config(tmp_path)
    assert stored_precision(stored_tensors(tmp_path).values()) == ("fp32" if "fp8" in name else "codes")
    with open_checkpoint(tmp_path) as checkpoint:
        located = checkpoint.table.locate(config)
        for module, expected in made.items():
            shape = tuple(expected.shape)
            assert torch.equal(checkpoint.read_tensor(module, shape), expected)
            for rows, columns in ((slice(3, 21), slice(40, 60)), (slice(10, 64), slice(32, 64))):
                assert torch.equal(
                    checkpoint.read_tensor(module, shape, rows, columns), expected[rows, columns]
                )
                found = checkpoint.read_codes(located[module], rows, columns)
                assert (found is not None and found.bits) == (bits or False) or "groups" in name
                if found is not None:
                    assert torch.equal(found.decode(), expected[rows, columns])


@pytest.mark.parametrize("name", ["int8", "fp8, fine-grained", "ternary"])
def test_a_model_computes_what_its_floats_do(tiny: Path, tmp_path: Path, name: str) -> None:
    quantize, quantization, bits = FORMS[name]
    values = write_quantized(tiny, tmp_path / "bytes", quantize, quantization)
    write_floats(tiny, tmp_path / "floats", values)
    require_same_logits(tmp_path / "bytes", tmp_path / "floats", codes_error=0.05 if bits else None)


def test_a_linear_class_says_how_scales_are_used(tiny: Path, tmp_path: Path) -> None:
    divided = write_quantized(tiny, tmp_path, ternary, BITNET | {"linear_class": "autobitlinear"})
    expected = divided[f"{NAME}.weight"]
    scale = load_file(tmp_path / "model.safetensors")[f"{NAME}.weight_scale"].float()
    with open_checkpoint(tmp_path) as checkpoint:
        found = checkpoint.read_tensor(f"{NAME}.weight", tuple(expected.shape))
    assert torch.equal(found, expected.sign() * scale)


def test_fingerprints_see_scales_and_how_they_are_used(tiny: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("ternary", "fp8, fine-grained")):
        quantize, quantization, _ = FORMS[name]
        directory = tmp_path / str(number)
        write_quantized(tiny, directory, quantize, quantization)
        config = read_config(directory)
        seen = {fingerprint(directory, config)}
        tensors = load_file(directory / "model.safetensors")
        scales = next(one for key, one in tensors.items() if key.startswith(f"{NAME}.weight_scale"))
        scales.view(-1)[0] *= 2
        save_file(tensors, directory / "model.safetensors")
        seen.add(fingerprint(directory, config))
        if name == "ternary":
            raw = json.loads((directory / "config.json").read_text())
            raw["quantization_config"]["linear_class"] = "autobitlinear"
            (directory / "config.json").write_text(json.dumps(raw))
            seen.add(fingerprint(directory, config))
        assert len(seen) == (3 if name == "ternary" else 2)


def test_what_is_damaged_or_of_another_form_is_refused(tiny: Path, tmp_path: Path) -> None:
    quantize, quantization, _ = FORMS["fp8, fine-grained"]
    write_quantized(tiny, tmp_path, quantize, quantization)
    tensors = load_file(tmp_path / "model.safetensors")

    refused = partial(check_refused, tmp_path, tensors)
    refused({f"{NAME}.weight_scale_inv": None}, "F8_E4M3, and no matrix with a weight_scale")
    refused({f"{NAME}.weight_scale_inv": torch.ones(2, 3)}, r"scales F32 \[2, 3\] or zero points do not fit")
    refused({f"{NAME}.weight": torch.zeros(64, 160, dtype=torch.int8)}, "zero points do not fit")
    config = json.loads((tmp_path / "config.json").read_text())
    for changed, message in (
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "`quantization_config.expert_dtype` is 'fp4'"),
        (BITNET | {"quantization_mode": "online"}, "`quantization_config.quantization_mode` is 'online'"),
        (compressed("nvfp4-pack-quantized", "float"), "the format here is 'nvfp4-pack-quantized'"),
        (INT8 | {"kv_cache_scheme": {"num_bits": 8}}, "without quantized KV"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": changed}))
        with pytest.raises(ModelError, match=message):
            read_config(tmp_path)
