"""The engine reads GGUF files: exact values of every type, any slice, each byte once, and the same model."""

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants
from safetensors.torch import load_file, save_file

from services.worker.engine.checkpoint import slice_reader
from services.worker.engine.checkpoint.codes.encoded_matrix import decoded
from services.worker.engine.checkpoint.fingerprint import fingerprint
from services.worker.engine.checkpoint.layer_weights import LayerWeights
from services.worker.engine.checkpoint.memory_check import weight_bytes
from services.worker.engine.checkpoint.tensor_table import TensorTable, stored_tensors
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import (
    load_embedding,
    load_final_norm,
    load_head,
    load_layer,
    open_source,
)
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.engine.plain.reference import ReferenceDecoder
from services.worker.gguf.dequantize import can_dequantize
from tests.kits.engine.gguf_models import finish, write_gguf
from tests.kits.engine.rank_threads import make_model, run_threads

QUANTIZED = [
    kind for kind in GGMLQuantizationType if kind.name not in slice_reader.TYPES and can_dequantize(kind)
]
ROWS, COLUMNS = 12, 1024
MATRIX, DOWN = "blk.0.ffn_up.weight", "blk.2.ffn_down.weight"
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 5, "num_key_value_heads": 2}),
    "qwen2": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    **{kind: ("llama", {"rope_parameters": rope, "head_dim": 32}) for kind, rope in ROPES.items()},
}


def write_matrix(path: Path, kind: GGMLQuantizationType, data: np.ndarray[Any, Any], name: str) -> Path:
    """A file with one matrix of the model's, as bytes of a type."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(COLUMNS)
    writer.add_head_count(4)
    writer.add_tensor(name, data, raw_dtype=kind)
    return finish(writer, path)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_slices_of_every_quantized_type_equal_the_whole_tensor(
    kind: GGMLQuantizationType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_reader, "BUFFER_BYTES", 5 * COLUMNS * 4)  # some rows at a time
    block, size = GGML_QUANT_SIZES[kind]
    # any bytes are values of a type; a scale may be no number, and then both sides have none
    data = np.random.default_rng(kind).integers(0, 256, (ROWS, COLUMNS // block * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        whole = torch.from_numpy(quants.dequantize(data, kind))
    path = write_matrix(tmp_path / "m.gguf", kind, data, "blk.0.ffn_up.weight")
    with open_checkpoint(path) as checkpoint:
        for rows in (slice(None), slice(3, 4), slice(1, 11)):
            for columns in (slice(None), slice(0, COLUMNS // 2), slice(COLUMNS // 3, 700), slice(1000, 1024)):
                found = checkpoint.read_tensor(MATRIX, (ROWS, COLUMNS), rows, columns, dtype=None)
                assert found.dtype == torch.float32
                torch.testing.assert_close(found, whole[rows, columns], rtol=0, atol=0, equal_nan=True)


def test_columns_that_begin_within_a_block_read_only_the_covering_blocks(tmp_path: Path) -> None:
    kind = GGMLQuantizationType.Q8_0
    values = np.random.default_rng(1).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    path = write_matrix(tmp_path / "m.gguf", kind, quants.quantize(values, kind), "blk.0.ffn_up.weight")
    with open_checkpoint(path) as checkpoint:
        checkpoint.read_tensor(MATRIX, (ROWS, COLUMNS), columns=slice(33, 64))
        assert checkpoint.loaded_bytes == ROWS * 34
        checkpoint.read_tensor(MATRIX, (ROWS, COLUMNS), columns=slice(31, 65))
        assert checkpoint.loaded_bytes == ROWS * (34 + 3 * 34)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: make_model(tmp_path_factory.mktemp("m"), family, dtype=torch.bfloat16, **changes)
        for name, (family, changes) in MODELS.items()
    }


@pytest.mark.parametrize("name", MODELS)
def test_a_file_holds_the_model_of_the_directory(models: dict[str, Path], name: str, tmp_path: Path) -> None:
    path = write_gguf(models[name], tmp_path / "m.gguf", "BF16")
    config = read_config(path)
    wanted = read_config(models[name])
    assert config == wanted
    with open_checkpoint(path) as checkpoint:
        source = open_source(checkpoint, config, SingleRank())
        with open_checkpoint(models[name]) as directory:
            given = open_source(directory, wanted, SingleRank())
            assert source.tensors.keys() == given.tensors.keys()
            for tensor in given.tensors:
                found = source.read(tensor, dtype=None)
                assert torch.equal(found, given.read(tensor, dtype=found.dtype)), tensor
                assert found.dtype == (torch.bfloat16 if found.ndim == 2 else torch.float32)
        tokens = list(range(7, 27))
        logits = ReferenceDecoder(checkpoint, config).logits(tokens)
    with open_checkpoint(models[name]) as checkpoint:
        # the file has eps in fp32
        torch.testing.assert_close(
            logits, ReferenceDecoder(checkpoint, wanted).logits(tokens), rtol=0, atol=1e-4
        )


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_ranks_read_each_byte_once_and_hold_what_a_directory_gives(
    world: int, kind: str, tmp_path: Path
) -> None:
    """The directory holds the dequantized values."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "vocab_size": 256}
    model = make_model(tmp_path / "m", "llama", attention_bias=True, **sizes)
    path = write_gguf(model, tmp_path / "m.gguf", kind)
    stored = load_file(model / "model.safetensors")
    for name, values in stored.items():
        if values.ndim == 2:
            raw_type = GGMLQuantizationType[kind]
            stored[name] = torch.from_numpy(
                quants.dequantize(quants.quantize(values.numpy(), raw_type), raw_type)
            )
    save_file(stored, model / "model.safetensors")
    found, wanted = _load(path, world), _load(model, world)
    assert sum(count for *_, count in found) == sum(t.end - t.begin for t in stored_tensors(path).values())
    for (layer, embedding, _), (other, table, _) in zip(found, wanted, strict=True):
        assert torch.equal(embedding, table)
        left, right = dict(_tensors(layer)), dict(_tensors(other))
        assert left.keys() == right.keys()
        for field, values in left.items():
            assert torch.equal(values, right[field]), field


def _tensors(part: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a layer, with their paths."""
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, torch.Tensor):
            yield f"{path}.{field.name}", value
        elif is_dataclass(value):
            yield from _tensors(value, f"{path}.{field.name}")


def _load(model: Path, world: int) -> list[tuple[LayerWeights, torch.Tensor, int]]:
    config = read_config(model)

    def work(collectives: Collectives) -> tuple[LayerWeights, torch.Tensor, int]:
        with open_checkpoint(model) as checkpoint:
            source = open_source(checkpoint, config, collectives)
            embedding = decoded(load_embedding(source, config))
            load_head(source, config)
            layers = [load_layer(source, config, index) for index in range(config.num_layers)]
            load_final_norm(source, config)
            return layers[1], embedding, checkpoint.loaded_bytes

    return run_threads(world, work)


def test_memory_is_counted_as_the_ranks_hold_it(tmp_path: Path) -> None:
    """Quantized values are held as fp32, halves as they are."""
    model = make_model(tmp_path / "m", "llama", intermediate_size=128)
    whole = weight_bytes(stored_tensors(model), "fp32", native=True, tied=False)
    for kind, share in (("Q8_0", 1.0), ("F32", 1.0), ("BF16", 0.5)):
        tensors = stored_tensors(write_gguf(model, tmp_path / f"{kind}.gguf", kind))
        found = weight_bytes(tensors, "fp32", native=True, tied=False)
        assert found == pytest.approx(whole * share, rel=0.02)


def test_a_split_model_is_the_same_model(models: dict[str, Path], tmp_path: Path) -> None:
    whole = write_gguf(models["llama"], tmp_path / "whole.gguf", "F16")
    parts = write_gguf(models["llama"], tmp_path / "parts.gguf", "F16", part_tensors=7)
    assert parts.name == "parts-00001-of-00005.gguf"
    config = read_config(parts)
    assert config == read_config(whole)
    assert fingerprint(parts, config) == fingerprint(whole, config)
    with open_checkpoint(parts) as checkpoint, open_checkpoint(whole) as other:
        open_source(checkpoint, config, SingleRank())
        for name, stored in checkpoint.table.tensors.items():
            assert torch.equal(
                checkpoint.read_tensor(name, stored.shape), other.read_tensor(name, stored.shape)
            )


def test_mutated_files_are_refused_in_a_sentence_or_read(models: dict[str, Path], tmp_path: Path) -> None:
    """What a header claims may be false in meaning too: each file is served as it says, or refused."""
    path = write_gguf(models["llama3"], tmp_path / "m.gguf", "F16")
    length = min(stored.begin for stored in stored_tensors(path).values())
    data, chance, refused = path.read_bytes(), random.Random(14), 0
    numbers = [n % 2**64 for n in (0, 1, 2, 7, 2**31, 2**32 - 1, 2**62, 2**63, -1, 0x7FC00000)]
    with path.open("r+b", buffering=0) as file:
        for _ in range(1_000):
            changed = bytearray(data[:length])
            position = chance.randrange(length)
            count = chance.choice((1, 4, 8))
            changed[position : position + count] = struct.pack("<Q", chance.choice(numbers))[:count]
            file.seek(0)
            file.write(changed[:length])
            try:
                TensorTable(path, stored_tensors(path)).check(read_config(path))
            except ModelError as error:
                refused += "\n" not in str(error)
    assert 500 < refused < 1_000


def test_a_fingerprint_tells_files_apart(models: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(models["llama"], tmp_path / "m.gguf", "F16")
    config = read_config(path)
    first = fingerprint(path, config)
    assert first == fingerprint(path, config)
    assert first != fingerprint(path, config, "int8")
    end = stored_tensors(path)[DOWN].end
    data = bytearray(path.read_bytes())
    data[end - 1] ^= 1
    path.write_bytes(data)
    assert first != fingerprint(path, config)


def test_what_the_model_does_not_have_is_refused_by_name(models: dict[str, Path], tmp_path: Path) -> None:
    config = json.loads((models["llama"] / "config.json").read_text())
    path = write_gguf(models["llama"], tmp_path / "m.gguf")
    data = path.read_bytes()
    for old, new, named in (
        (b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight", "blk.1.ffn_up.weight is in none"),
        (b"rope.freq_base", b"rope.freq_xxxx", r"`llama.rope.freq_xxxx`, which may change"),
        (b"blk.2.ffn_norm.weight", b"blk.9.ffn_norm.weight", "blk.2.ffn_norm.weight is in none"),
    ):
        path.write_bytes(data.replace(old, new))
        with pytest.raises(ModelError, match=named), open_checkpoint(path) as checkpoint:
            open_source(checkpoint, read_config(path), SingleRank())
    path.write_bytes(data)
    with open_checkpoint(path) as checkpoint, pytest.raises(ModelError, match="its metadata demands"):
        checkpoint.table.find("output.weight", (config["vocab_size"] + 1, config["hidden_size"]))


@pytest.mark.parametrize(("kind", "shape"), [("Q8_K", (4, 256)), ("I8", (4, 32)), ("Q8_0", (64,))])
def test_types_that_are_not_served_are_refused_by_name(
    kind: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    raw_type = GGMLQuantizationType[kind]
    block, size = GGML_QUANT_SIZES[raw_type]
    data = np.zeros((*shape[:-1], shape[-1] // block * size), np.int8 if kind == "I8" else np.uint8)
    path = write_matrix(tmp_path / "m.gguf", raw_type, data, "blk.0.ffn_up.weight")
    with (
        open_checkpoint(path) as checkpoint,
        pytest.raises(ModelError, match=f"type {kind}, supported: BF16"),
    ):
        checkpoint.read_tensor(MATRIX, shape)


def test_a_file_that_shrinks_while_it_is_read_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(models["qwen2"], tmp_path / "m.gguf", "F16")
    with open_checkpoint(path) as checkpoint:
        stored = checkpoint.table.tensors[DOWN]
        with path.open("r+b") as file:
            file.truncate(stored.begin + 8)
        with pytest.raises(ModelError, match="has become shorter while tensor"):
            checkpoint.read_tensor(DOWN, stored.shape)
