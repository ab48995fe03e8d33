"""GPTQ and AWQ: values bit for bit, any slice, codes, what a model computes; what is refused."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.fingerprint import fingerprint
from services.worker.engine.checkpoint.layer_weights import MlpWeights
from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import load_layer, open_source
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.engine.precision import stored_precision
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.damaged_tensors import check_refused
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_threads import native_ranks, plan_logits
from tests.kits.models.quantized_models import require_same_logits, write_floats, write_quantized

NAME = "model.layers.0.mlp.down_proj"
GROUP = 32
TOKENS = list(range(40))
FORMATS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False},
    "gptq-sym": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True},
    "gptq-8": {"quant_method": "gptq", "bits": 8, "group_size": GROUP, "desc_act": False, "sym": False},
    "gptq-3": {"quant_method": "gptq", "bits": 3, "group_size": GROUP, "desc_act": False, "sym": False},
    "gptq-order": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": False},
    "gptq-order-3": {"quant_method": "gptq", "bits": 3, "group_size": GROUP, "desc_act": True, "sym": True},
    "gptq-2": {"quant_method": "gptq", "bits": 2, "group_size": GROUP, "checkpoint_format": "gptq_v2"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
}


def into_words(numbers: Tensor, bits: int, order: list[int]) -> Tensor:
    """Packs the last dimension: place p of a word, from its lowest bits on, has its number order[p]."""
    if bits == 3:  # a stream of bits, 32 numbers in three words
        stream = (numbers.long()[..., None] >> torch.arange(3) & 1).numpy().astype(np.uint8)
        held = np.packbits(stream.reshape(*numbers.shape[:-1], -1), axis=-1, bitorder="little")
        return torch.from_numpy(held.view(np.int32).copy())
    each = 32 // bits
    split = numbers.long().view(*numbers.shape[:-1], -1, each)[..., order]
    words = (split << (torch.arange(each) * bits)).sum(-1)
    return torch.where(words < 2**31, words, words - 2**32).int()


def packed(tensor: Tensor, form: dict[str, Any], seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Random numbers of the tensor's shape and size as the format's tensors, and what they stand for."""
    generator = torch.Generator().manual_seed(seed)
    outputs, inputs = tensor.shape
    bits, groups = form["bits"], inputs // GROUP
    codes = torch.randint(0, 2**bits, (outputs, inputs), generator=generator)
    zeros = torch.randint(1, 2**bits, (groups, outputs), generator=generator)
    if form.get("sym"):
        zeros = torch.full_like(zeros, 1 << (bits - 1))
    size = tensor.float().abs().mean() / 2 ** (bits - 1)
    scales = ((torch.rand((groups, outputs), generator=generator) + 0.5) * size).half()
    g_idx = torch.arange(inputs, dtype=torch.int32) // GROUP
    if form.get("desc_act"):
        # matrices with the same inputs have one order, as in most files, or their own
        draw = generator if form["sym"] else torch.Generator().manual_seed(inputs)
        g_idx = g_idx[torch.randperm(inputs, generator=draw)]
    spread = [grouped.T[:, g_idx.long()] for grouped in (scales.float(), zeros)]
    values = spread[0] * (codes - spread[1]).float()
    plain = list(range(32 // bits))
    if form["quant_method"] == "awq":
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        parts = {"qweight": into_words(codes.T, bits, order), "qzeros": into_words(zeros, bits, order)}
    else:
        above = 0 if form.get("checkpoint_format") == "gptq_v2" else 1
        parts = {
            "qweight": into_words(codes, bits, plain).T.contiguous(),
            "qzeros": into_words(zeros - above, bits, plain),
            "g_idx": g_idx,
        }
    return parts | {"scales": scales}, values


def write(tiny: Path, directory: Path, form: dict[str, Any]) -> dict[str, Tensor]:
    """Writes the model with all linears packed; returns their values."""
    return write_quantized(tiny, directory, lambda tensor, seed: packed(tensor, form, seed), form)


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_those_of_the_formula(tiny: Path, tmp_path: Path, name: str) -> None:
    form = FORMATS[name]
    made = write(tiny, tmp_path, form)
    config, bits = read_config(tmp_path), 4 if form["bits"] == 3 else form["bits"]
    assert stored_precision(stored_tensors(tmp_path).values()) == "codes"
    with open_checkpoint(tmp_path) as checkpoint:
        located = checkpoint.table.locate(config)
        for module, expected in made.items():
            shape = tuple(expected.shape)
            assert torch.equal(checkpoint.read_tensor(module, shape), expected)
            part = checkpoint.read_tensor(module, shape, slice(3, 21), slice(40, 60))
            assert torch.equal(part, expected[3:21, 40:60])
            for rows, columns in ((slice(None), slice(None)), (slice(5, 30), slice(32, 64))):
                found = checkpoint.read_codes(located[module], rows, columns)
                assert found is not None
                assert (found.order is not None) == bool(form.get("desc_act"))
                assert (found.bits, found.offsets is None) == (bits, bool(form.get("sym")))
                assert torch.equal(found.decode(), expected[rows, columns])


@pytest.mark.parametrize("name", ["gptq", "gptq-3", "gptq-order", "gptq-order-3", "awq"])
def test_a_model_computes_what_its_floats_do(tiny: Path, tmp_path: Path, name: str) -> None:
    values = write(tiny, tmp_path / "packed", FORMATS[name])
    write_floats(tiny, tmp_path / "floats", values)
    require_same_logits(tmp_path / "packed", tmp_path / "floats", codes_error=0.05)


@pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")
def test_ranks_sort_their_own_inputs(tiny: Path, tmp_path: Path) -> None:
    values = write(tiny, tmp_path / "packed", FORMATS["gptq-order"])
    write_floats(tiny, tmp_path / "floats", values)
    plan = StepPlan(step_id=1, admit=[new_sequence(1, TOKENS)], chunks=[Blocks(16).chunk(1, 0, TOKENS)])
    expected = plan_logits(tmp_path / "floats", 1, [plan], 16)[0]
    config = read_config(tmp_path / "packed")
    with open_checkpoint(tmp_path / "packed") as checkpoint:
        source = replace(open_source(checkpoint, config, SingleRank()), codes=True)
        layer = load_layer(source, config, 0, None)
    assert isinstance(layer.mlp, MlpWeights)
    for matrix in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down):
        assert isinstance(matrix, EncodedMatrix)
        assert matrix.order is not None
    for world in (1, 2):
        found = plan_logits(tmp_path / "packed", world, [plan], 16, native_ranks(precision="codes"))[0]
        assert 0 < float((found - expected).norm() / expected.norm()) < 0.05


def test_fingerprints_see_scales_codes_and_zero_points(tiny: Path, tmp_path: Path) -> None:
    write(tiny, tmp_path, FORMATS["gptq"])
    config = read_config(tmp_path)
    seen = {fingerprint(tmp_path, config)}
    for part in ("qweight", "qzeros", "scales"):
        tensors = load_file(tmp_path / "model.safetensors")
        tensors[f"{NAME}.{part}"].view(-1)[0] += 1
        save_file(tensors, tmp_path / "model.safetensors")
        seen.add(fingerprint(tmp_path, config))
    assert len(seen) == 4


def test_what_is_damaged_or_of_another_form_is_refused(tiny: Path, tmp_path: Path) -> None:
    write(tiny, tmp_path, FORMATS["gptq"])
    tensors = load_file(tmp_path / "model.safetensors")

    refused = partial(check_refused, tmp_path, tensors)
    refused({f"{NAME}.scales": None}, "qzeros and scales are I32, I32, missing")
    refused({f"{NAME}.qzeros": torch.zeros(5, 3, dtype=torch.int32)}, "is no matrix of 2, 3, 4 or 8 bits")
    order = tensors[f"{NAME}.g_idx"]
    refused({f"{NAME}.g_idx": order + 1}, "names groups from 1 to 5, there are 5")
    refused({f"{NAME}.g_idx": order[1:].clone()}, r"a g_idx is I32 \[159\], not 160")
    config = json.loads((tmp_path / "config.json").read_text())
    for changed, message in (
        ({"bits": 5}, "`quantization_config.bits` is 5"),
        ({"checkpoint_format": "marlin"}, "`quantization_config.checkpoint_format` is 'marlin'"),
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes' are not read; take the model as GGUF"),
        ({"quant_method": "awq", "version": "gemv"}, "`quantization_config.version` is 'gemv'"),
    ):
        quantized = config["quantization_config"] | changed
        (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": quantized}))
        with pytest.raises(ModelError, match=message):
            read_config(tmp_path)
