"""gpt-oss with experts in four-bit floats is computed as with the same experts as floats."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix
from services.worker.engine.checkpoint.codes.encoded_matrix import decoded as as_floats
from services.worker.engine.checkpoint.codes.four_bit_floats import decoded
from services.worker.engine.checkpoint.layer_weights import ExpertsWeights
from services.worker.engine.checkpoint.layers.mlp_loader import load_experts
from services.worker.engine.checkpoint.slice_reader import four_bit_codes
from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.layer import ExpertsConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_threads import COMPUTES, native_ranks, plan_logits, run_threads
from tests.kits.families.models import family_model, random_model, text

SIZES = {"hidden_size": 64, "intermediate_size": 96}  # whole groups of 32


def test_values_are_those_of_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # noqa: PLC0415 (slow to import)

    draw = np.random.default_rng(1)
    blocks = draw.integers(0, 256, (2, 6, 3, 16), dtype=np.uint8)
    scales = draw.integers(100, 140, (2, 6, 3), dtype=np.uint8)
    theirs = convert_moe_packed_tensors(
        torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
    )  # [experts, in, out]
    ours = [decoded(blocks[index].reshape(6, 48), scales[index]) for index in range(2)]
    assert torch.equal(torch.from_numpy(np.stack(ours)), theirs.transpose(1, 2))


def test_codes_hold_the_values_of_all_finite_scales() -> None:
    blocks = np.tile(np.arange(16, dtype=np.uint8) * 17, (1, 253))
    scales = np.arange(253, dtype=np.uint8).reshape(1, 253)  # beyond, values are infinite
    assert torch.equal(four_bit_codes(blocks, scales).decode(), torch.from_numpy(decoded(blocks, scales)))


def experts_of(directory: Path, collectives: Collectives) -> ExpertsWeights:
    """A rank's part of the first layer's experts, as codes if they are stored so."""
    config = read_config(directory)
    shape = config.layers[0].mlp
    assert isinstance(shape, ExpertsConfig)
    with open_checkpoint(directory) as checkpoint:
        source = replace(open_source(checkpoint, config, collectives), codes=True)
        return load_experts(source, "model.layers.0.mlp", shape, config.hidden_size, None)


@pytest.mark.parametrize("world", [1, 3])
def test_experts_in_four_bits(tmp_path: Path, world: int) -> None:
    floats, coded = tmp_path / "floats", tmp_path / "coded"
    random_model("gpt_oss").save_pretrained(floats)
    raw = json.loads((floats / "config.json").read_text()) | SIZES
    tensors, packed, draw = load_file(floats / "model.safetensors"), {}, np.random.default_rng(2)
    for name in [name for name in tensors if name.endswith("experts.down_proj")]:
        module = name.removesuffix("down_proj")
        for part, rows, width in (("gate_up_proj", 192, 64), ("down_proj", 64, 96)):
            blocks = draw.integers(0, 256, (6, rows, width // 32, 16), dtype=np.uint8)
            scales = draw.integers(122, 126, (6, rows, width // 32), dtype=np.uint8)
            values = [decoded(b.reshape(rows, -1), s) for b, s in zip(blocks, scales, strict=True)]
            del tensors[module + part]
            packed[f"{module}{part}_blocks"] = torch.from_numpy(blocks)
            packed[f"{module}{part}_scales"] = torch.from_numpy(scales)
            tensors[module + part] = torch.from_numpy(np.stack(values)).transpose(1, 2).contiguous()
        tensors[f"{module}gate_up_proj_bias"] = torch.randn(6, 192)
    (floats / "config.json").write_text(json.dumps(raw))
    save_file(tensors, floats / "model.safetensors")
    shutil.copytree(floats, coded)
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (coded / "config.json").write_text(json.dumps(raw | {"quantization_config": quantization}))
    others = {name: t for name, t in tensors.items() if not name.endswith(("gate_up_proj", "down_proj"))}
    save_file(others, coded / "a.safetensors")
    save_file(packed, coded / "b.safetensors")
    (coded / "model.safetensors").unlink()
    paths = dict.fromkeys(others, "a.safetensors") | dict.fromkeys(packed, "b.safetensors")
    (coded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": paths}))

    tokens = text("a")[:40]
    plan = StepPlan(step_id=1, admit=[new_sequence(1, tokens)], chunks=[Blocks(16).chunk(1, 0, tokens)])
    found, wanted = (plan_logits(d, world, [plan], 16, COMPUTES["plain"])[0] for d in (coded, floats))
    assert torch.equal(found, wanted)

    as_codes = run_threads(world, partial(experts_of, coded))
    for own, plain in zip(as_codes, run_threads(world, partial(experts_of, floats)), strict=True):
        for matrices, whole in ((own.gate_up, plain.gate_up), (own.down, plain.down)):
            assert all(isinstance(one, EncodedMatrix) and one.bits == 4 for one in matrices)
            for one, floats_of_it in zip(matrices, whole, strict=True):
                assert torch.equal(as_floats(one), as_floats(floats_of_it))
    if targets():  # kernels, which multiply codes with activations of 8 bits
        kernel = plan_logits(coded, world, [plan], 16, native_ranks(precision="codes"))[0]
        assert 0 < float((kernel - wanted).norm() / wanted.norm()) < 0.05


def test_blocks_without_scales_are_refused(tmp_path: Path) -> None:
    model = family_model("gpt_oss").directory
    tensors = load_file(model / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj"
    tensors[f"{name}_blocks"] = torch.zeros(6, 64, 1, 16, dtype=torch.uint8)
    tensors[f"{name}_scales"] = torch.zeros(6, 64, 2, dtype=torch.uint8)  # of another shape
    save_file(tensors, tmp_path / "model.safetensors")
    shutil.copy(model / "config.json", tmp_path)
    assert stored_tensors(tmp_path)[f"{name}_blocks"].scales is None
    plan = StepPlan(step_id=1)
    with pytest.raises(ModelError, match="no place in the model"):
        plan_logits(tmp_path, 1, [plan], 16, COMPUTES["plain"])
