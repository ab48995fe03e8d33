"""`ryz models convert` of mixtures: the experts of a layer become one tensor; the engine reads the same."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from benchmarks.models.make_model import make_model
from benchmarks.models.shapes import SHAPES
from cli.models.convert.hf_to_gguf import HfToGguf
from services.worker.engine.checkpoint.names.canonical import canonical_tensors
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.gguf.gguf_file import read_gguf

SHAPE = replace(SHAPES["tiny"], experts=4, chosen=2, kv_heads=4)


def tensors(model: Path) -> dict[str, torch.Tensor]:
    config = read_config(model)
    with open_checkpoint(model) as checkpoint:
        source = open_source(checkpoint, config, SingleRank())
        return {one.name: source.read(one.name) for one in canonical_tensors(config)}


def convert(model: Path, target: Path, kind: str) -> Path:
    HfToGguf(model, GGMLQuantizationType[kind]).write(target, lambda _: None)
    return target


@pytest.fixture
def mixtral(tmp_path: Path) -> Path:
    make_model(tmp_path / "mixtral", SHAPE)
    return tmp_path / "mixtral"


def as_qwen3_moe(mixtral: Path, directory: Path) -> Path:
    """The same weights under Qwen3-MoE's names, with norms of heads."""
    shutil.copytree(mixtral, directory)
    config = json.loads((mixtral / "config.json").read_text())
    experts = {"num_experts": config.pop("num_local_experts"), "norm_topk_prob": True}
    config |= experts | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    config["moe_intermediate_size"] = config["intermediate_size"]
    (directory / "config.json").write_text(json.dumps(config))
    renamed = {
        ".block_sparse_moe.": ".mlp.",
        ".w1.": ".gate_proj.",
        ".w2.": ".down_proj.",
        ".w3.": ".up_proj.",
    }
    found = dict[str, torch.Tensor]()
    for stored, tensor in load_file(mixtral / "model.safetensors").items():
        name = stored
        for old, new in renamed.items():
            name = name.replace(old, new)
        found[name] = tensor
    for layer in range(SHAPE.layers):
        for part in ("q_norm", "k_norm"):
            found[f"model.layers.{layer}.self_attn.{part}.weight"] = torch.rand(SHAPE.head_dim)
    save_file(found, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("architecture", ["llama", "qwen3moe"])
def test_the_engine_reads_the_same_model(mixtral: Path, tmp_path: Path, architecture: str) -> None:
    model = mixtral if architecture == "llama" else as_qwen3_moe(mixtral, tmp_path / "qwen3")
    file = convert(model, tmp_path / "model.gguf", "F32")
    assert read_gguf(file).architecture == architecture
    assert read_config(file).layers == read_config(model).layers
    wanted, found = tensors(model), tensors(file)
    assert wanted.keys() == found.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def test_experts_are_one_tensor_of_the_asked_type_and_routers_are_floats(
    mixtral: Path, tmp_path: Path
) -> None:
    stored = read_gguf(convert(mixtral, tmp_path / "model.gguf", "Q8_0")).tensors
    assert stored["blk.1.ffn_up_exps.weight"].type.name == "Q8_0"
    assert stored["blk.1.ffn_gate_inp.weight"].type.name == "F32"
    assert not [name for name in stored if ".experts." in name]


def test_a_missing_expert_is_named(mixtral: Path) -> None:
    path = mixtral / "model.safetensors"
    kept = load_file(path)
    del kept["model.layers.0.block_sparse_moe.experts.1.w1.weight"]
    save_file(kept, path)
    with pytest.raises(ModelError, match=r"block_sparse_moe\.experts\.1\.w1\.weight is in none"):
        HfToGguf(mixtral, None)
