"""Ranks load exact slices of the weights, read each byte once per group, and hold no extra copies."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.worker.engine.checkpoint import slice_reader
from services.worker.engine.checkpoint.codes.encoded_matrix import decoded
from services.worker.engine.checkpoint.layer_weights import LayerWeights, MlpWeights, NormWeights
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import (
    load_embedding,
    load_final_norm,
    load_head,
    load_layer,
    open_source,
)
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from tests.kits.engine.gguf_models import write_gguf
from tests.kits.engine.rank_threads import UNEVEN, make_model, run_threads

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied, one KV head": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "nine heads on three": ("llama", UNEVEN["nine heads on three"]),
    "two KV heads": ("qwen3", {"num_key_value_heads": 2, "attention_bias": True, "head_dim": 24}),
}

# rows or columns of each rank, by module, size and ranks, where they are not the same for all
UNEVEN_PARTS = {
    ("q_proj", 288, 2): [192, 96],
    ("o_proj", 288, 2): [192, 96],
    ("gate_proj", 160, 2): [64, 96],
    ("up_proj", 160, 2): [64, 96],
    ("down_proj", 160, 2): [64, 96],
    ("gate_proj", 160, 3): [32, 64, 64],
    ("up_proj", 160, 3): [32, 64, 64],
    ("down_proj", 160, 3): [32, 64, 64],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: make_model(tmp_path_factory.mktemp("m"), family, dtype=torch.bfloat16, **changes)
        for name, (family, changes) in VARIANTS.items()
    }


def _load(
    model: Path, world: int, dtype: torch.dtype | None
) -> tuple[list[tuple[LayerWeights, Tensor, Tensor | None, Tensor]], int]:
    """Loads a model on `world` ranks.

    Returns:
        Layer 1, embedding, head and final norm of each rank, and the bytes read by all ranks together.
    """
    config = read_config(model)

    def work(collectives: Collectives) -> tuple[tuple[LayerWeights, Tensor, Tensor | None, Tensor], int]:
        with open_checkpoint(model) as checkpoint:
            source = open_source(checkpoint, config, collectives)
            embedding = decoded(load_embedding(source, config, dtype))
            head = None if config.tied_embeddings else decoded(load_head(source, config, dtype))
            layers = [load_layer(source, config, index, dtype) for index in range(config.num_layers)]
            norm = load_final_norm(source, config).weight
            return (layers[1], embedding, head, norm), checkpoint.loaded_bytes

    loaded = run_threads(world, work)
    return [parts for parts, _ in loaded], sum(count for _, count in loaded)


def _same(found: Tensor | None, wanted: Tensor) -> None:
    assert found is not None
    assert torch.equal(found, wanted.to(found.dtype))


@pytest.mark.parametrize(
    ("name", "world"),
    [(name, world) for name in VARIANTS for world in ((1, 2, 3) if name in UNEVEN else (1, 2, 4))],
)
@pytest.mark.parametrize("buffer_bytes", [100, 1 << 22])
def test_slices_are_exact_and_read_once(
    models: dict[str, Path], name: str, world: int, buffer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_reader, "BUFFER_BYTES", buffer_bytes)
    config, stored = read_config(models[name]), load_file(models[name] / "model.safetensors")
    dtype = torch.float32 if buffer_bytes == 100 else None
    ranks, loaded_bytes = _load(models[name], world, dtype)
    assert loaded_bytes == sum(tensor.nbytes for tensor in stored.values())
    assert _qkv(ranks[0][0]).dtype == (dtype or torch.bfloat16)
    for rank, (layer, _, _, norm) in enumerate(ranks):
        _check_layer(layer, stored, config, rank, world)
        _same(norm, stored["model.norm.weight"])
    _same(torch.cat([embedding for _, embedding, _, _ in ranks]), stored["model.embed_tokens.weight"])
    if not config.tied_embeddings:
        _same(torch.cat([h for _, _, h, _ in ranks if h is not None]), stored["lm_head.weight"])


def _check_layer(
    layer: LayerWeights, stored: dict[str, Tensor], config: ModelConfig, rank: int, world: int
) -> None:
    def tensor(name: str) -> Tensor:
        return stored[f"model.layers.1.{name}"]

    def split(name: str, dim: int) -> Tensor:
        whole = tensor(name)
        even = [whole.shape[dim] // world] * world
        parts = UNEVEN_PARTS.get((name.split(".")[1], whole.shape[dim], world), even)
        return whole.narrow(dim, sum(parts[:rank]), parts[rank])

    def kv(name: str) -> Tensor:
        heads = tensor(name).view(config.num_kv_heads, config.head_dim, *tensor(name).shape[1:])
        # the KV heads that this rank's query heads use
        used = heads.repeat_interleave(max(1, world // config.num_kv_heads), 0).tensor_split(world)[rank]
        return used.flatten(0, 1)

    attention, mlp = layer.attention, layer.mlp
    assert isinstance(mlp, MlpWeights)
    for suffix, fused in (("weight", _qkv(layer)), ("bias", attention.qkv_bias)):
        if suffix == "weight" or config.layers[0].attention.qkv_bias:
            parts = [split(f"self_attn.q_proj.{suffix}", 0)]
            parts += [kv(f"self_attn.{part}.{suffix}") for part in ("k_proj", "v_proj")]
            _same(fused, torch.cat(parts))
    for suffix, fused in (("weight", decoded(mlp.gate_up)), ("bias", mlp.gate_up_bias)):
        if suffix == "weight" or config.layers[0].dense_mlp.bias:
            _same(fused, torch.cat([split(f"mlp.{part}.{suffix}", 0) for part in ("gate_proj", "up_proj")]))
    _same(decoded(attention.output), split("self_attn.o_proj.weight", 1))
    _same(decoded(mlp.down), split("mlp.down_proj.weight", 1))
    for found, name in (
        (_weight(layer.input_norm), "input_layernorm.weight"),
        (_weight(layer.mlp_norm), "post_attention_layernorm.weight"),
        (_weight(attention.q_norm), "self_attn.q_norm.weight"),
        (_weight(attention.k_norm), "self_attn.k_norm.weight"),
        (attention.output_bias, "self_attn.o_proj.bias"),
        (mlp.down_bias, "mlp.down_proj.bias"),
    ):
        assert (found is None) == (f"model.layers.1.{name}" not in stored)
        if found is not None:
            _same(found, tensor(name))
            assert found.dtype == torch.float32


def _weight(norm: NormWeights | None) -> Tensor | None:
    return None if norm is None else norm.weight


def _qkv(layer: LayerWeights) -> Tensor:
    assert layer.attention.qkv is not None
    return decoded(layer.attention.qkv)


def test_stored_types_that_differ_are_widened(models: dict[str, Path], tmp_path: Path) -> None:
    model = make_model(tmp_path / "mixed", "llama", dtype=torch.bfloat16)
    tensors = load_file(model / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors[name] = tensors[name].to(torch.float16)
    save_file(tensors, model / "model.safetensors")
    layer = _load(model, 1, None)[0][0][0]
    assert isinstance(layer.mlp, MlpWeights)
    assert _qkv(layer).dtype == torch.float32
    assert decoded(layer.mlp.gate_up).dtype == torch.bfloat16
    _same(_qkv(layer)[128:192], tensors[name])


@pytest.mark.parametrize("kind", ["", "Q8_0"])
def test_loading_takes_no_more_memory_than_the_weights(kind: str, tmp_path: Path) -> None:
    big = {"hidden_size": 512, "intermediate_size": 4096, "vocab_size": 8192, "num_hidden_layers": 2}
    model = make_model(tmp_path / "big", "llama", dtype=torch.bfloat16, **big)
    if kind:
        model = write_gguf(model, tmp_path / "big.gguf", kind)
    config = read_config(model)
    with open_checkpoint(model) as checkpoint:
        source = open_source(checkpoint, config, SingleRank())
        if kind:  # numpy and the package make their own on the first call
            load_final_norm(source, config)
            source.read("lm_head.weight", slice(0, 64))
        before = _restart_peak()
        kept = [load_layer(source, config, index) for index in range(config.num_layers)]
        head = decoded(load_head(source, config))
        growth = _memory("VmHWM") - before
    size = head.nbytes + sum(
        part.nbytes
        for layer in kept
        if isinstance(layer.mlp, MlpWeights)
        for part in map(decoded, (_qkv(layer), layer.attention.output, layer.mlp.gate_up, layer.mlp.down))
    )
    assert size > 60e6
    # room for one read buffer and for the allocator's rounding
    assert growth < size + 2 * slice_reader.BUFFER_BYTES + 8e6


def _restart_peak() -> int:
    """Resets the peak resident memory of this process and returns the current value in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"the peak of memory cannot be measured here: {error}")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
