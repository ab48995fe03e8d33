"""Model directories that cannot be served are refused with one sentence that names the fault."""

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.worker.engine import int8
from services.worker.engine.checkpoint.fingerprint import fingerprint
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import Collectives, SingleRank
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.engine.plain.model import Decoder
from tests.kits.engine.rank_threads import make_llama, run_threads


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("good"))


@pytest.fixture
def model_copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


def _edit(model_copy: Path, **changes: Any) -> None:
    raw = json.loads((model_copy / "config.json").read_text())
    (model_copy / "config.json").write_text(json.dumps(raw | changes))


def _load(model_copy: Path) -> Decoder:
    with open_checkpoint(model_copy) as checkpoint:
        return Decoder(checkpoint, read_config(model_copy), SingleRank())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        ({"architectures": None}, "architectures"),
        ({"vocab_size": None}, "vocab_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"hidden_act": "tanh"}, "hidden_act"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}}, "axial"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, r"rope_scaling\.factor"),
        ({"rope_parameters": [1]}, "rope_parameters"),
    ],
)
def test_a_wrong_config_names_its_field(model_copy: Path, changes: dict[str, Any], named: str) -> None:
    _edit(model_copy, **changes)
    with pytest.raises(ModelError, match=named) as refusal:
        read_config(model_copy)
    assert str(model_copy / "config.json") in str(refusal.value)


def test_old_and_new_spelling_of_theta(model_copy: Path) -> None:
    _edit(model_copy, rope_parameters=None, rope_theta=5e5)
    assert read_config(model_copy).rope.theta == 5e5
    _edit(model_copy, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    assert read_config(model_copy).rope.theta == 1e6


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
def test_a_config_that_is_no_json_object(model_copy: Path, content: bytes) -> None:
    (model_copy / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(model_copy)


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        read_config(tmp_path / "nowhere")


@pytest.mark.parametrize("world", [0, 5, 16])
def test_a_split_that_does_not_fit(good: Path, world: int) -> None:
    with pytest.raises(ModelError, match=f"tensor_parallel={world} .*: 1 to 4, 8$"):
        read_config(good).check_split(world)


def test_missing_tensor(model_copy: Path) -> None:
    tensors = load_file(model_copy / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, model_copy / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is in none"):
        _load(model_copy)


def test_misshapen_tensor(model_copy: Path) -> None:
    _edit(model_copy, intermediate_size=128)
    with pytest.raises(ModelError, match=r"mlp\.gate_proj\.weight has shape \(112, 64\).*\(128, 64\)"):
        _load(model_copy)


def test_unsupported_type(model_copy: Path) -> None:
    tensors = load_file(model_copy / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float64)
    save_file(tensors, model_copy / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight has type F64"):
        _load(model_copy)


def _rewrite(model_copy: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Replaces the header of the weights file and keeps the data."""
    path = model_copy / "model.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    changed = json.dumps(change(header) or header).encode()
    path.write_bytes(struct.pack("<Q", len(changed)) + changed + content[8 + length :])


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda h: h[NORM].update(data_offsets=[0, 256]), f"the tensors .*{NORM}.* share bytes"),
        (lambda h: h[NORM].update(data_offsets=[0, 8]), rf"{NORM} is F32 \[64\], .* gives it 8 bytes"),
        (lambda h: h[NORM].update(data_offsets=[10**9, 10**9 + 256]), f"{NORM} would end at byte 1000"),
        (lambda h: h[NORM].update(data_offsets=[256, 0]), f"{NORM} has no proper dtype"),
        (lambda h: h[NORM].update(shape=[-64]), f"{NORM} has no proper dtype"),
        (lambda h: h[NORM].update(shape="64"), f"{NORM} has no proper dtype"),
        (lambda h: h[NORM].update(dtype=7), f"{NORM} has no proper dtype"),
        (lambda h: {"x": 1}, "x has no proper dtype"),
        (lambda h: [1], "no JSON object"),
    ],
)
def test_a_header_that_lies(model_copy: Path, change: Callable[[dict[str, Any]], Any], named: str) -> None:
    _rewrite(model_copy, change)
    with pytest.raises(ModelError, match=rf"model\.safetensors is no complete.*({named})"):
        _load(model_copy)


def test_a_header_that_is_no_json(model_copy: Path) -> None:
    (model_copy / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"{{{{" + bytes(100))
    with pytest.raises(ModelError, match="its header is no JSON"):
        _load(model_copy)


@pytest.mark.parametrize(
    "name",
    ["model.layers.3.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias", "model.layers.0.extra"],
)
def test_a_tensor_that_the_model_lacks(model_copy: Path, name: str) -> None:
    tensors = load_file(model_copy / "model.safetensors")
    save_file(tensors | {name: torch.zeros(8)}, model_copy / "model.safetensors")
    with pytest.raises(ModelError, match=rf"model\.safetensors: tensor {name} has no place in the model"):
        _load(model_copy)


def test_leftovers_of_older_files_are_no_harm(model_copy: Path) -> None:
    tensors = load_file(model_copy / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(tensors, model_copy / "model.safetensors")
    _load(model_copy)
    _edit(model_copy, tie_word_embeddings=True)
    with pytest.raises(ModelError, match=r"tie_word_embeddings.*tensor lm_head\.weight is another matrix"):
        _load(model_copy)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()  # is then not read
    save_file(tensors, model_copy / "model.safetensors")
    decoder = _load(model_copy)
    assert decoder.head.weight is decoder.embedding.weight


def test_a_tensor_in_two_files(model_copy: Path) -> None:
    tensors = load_file(model_copy / "model.safetensors")
    (model_copy / "model.safetensors").rename(model_copy / "a.safetensors")
    save_file({NORM: tensors[NORM]}, model_copy / "b.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "a.safetensors") | {NORM: "b.safetensors"}}
    (model_copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=rf"b\.safetensors: tensor {NORM} is in a\.safetensors as well"):
        _load(model_copy)


def test_all_ranks_refuse_alike(model_copy: Path) -> None:
    tensors = load_file(model_copy / "model.safetensors")
    del tensors[NORM]
    save_file(tensors, model_copy / "model.safetensors")

    def refusal(collectives: Collectives) -> str:
        with open_checkpoint(model_copy) as checkpoint, pytest.raises(ModelError) as error:
            Decoder(checkpoint, read_config(model_copy), collectives)
        return str(error.value)

    first, second = run_threads(2, refusal)
    assert first == second == f"{model_copy}: tensor {NORM} is in none of the weight files"


def test_a_file_that_shrinks_while_it_is_read(model_copy: Path) -> None:
    with open_checkpoint(model_copy) as checkpoint:
        os.truncate(model_copy / "model.safetensors", 20_000)
        with pytest.raises(
            ModelError, match=r"model\.safetensors has become shorter while tensor .* was read"
        ):
            Decoder(checkpoint, read_config(model_copy), SingleRank())


def test_a_disk_that_fails(model_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with open_checkpoint(model_copy) as checkpoint:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(ModelError, match=r"tensor .* cannot be read: Input/output error"):
            Decoder(checkpoint, read_config(model_copy), SingleRank())


@pytest.mark.parametrize("keep", [0, 4, 500, 100_000])
def test_truncated_file(model_copy: Path, keep: int) -> None:
    path = model_copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors is no complete safetensors file"):
        _load(model_copy)


def test_no_weights(model_copy: Path) -> None:
    (model_copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        _load(model_copy)


@pytest.mark.parametrize(
    ("index", "named"),
    [
        ({}, "weight_map"),
        ({"weight_map": {"a": "gone.safetensors"}}, "gone.safetensors"),
        ({"weight_map": {"a": "../model/model.safetensors"}}, "no file beside it"),
    ],
)
def test_a_wrong_index(model_copy: Path, index: dict[str, Any], named: str) -> None:
    (model_copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=named):
        _load(model_copy)


def test_fingerprint_names_content_not_files(
    model_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_config(model_copy)
    first = fingerprint(model_copy, config)
    quantized = fingerprint(model_copy, config, "int8")
    assert quantized != first, "other weights make other keys and values"
    monkeypatch.setattr(int8, "FORMAT", "int8:64")
    assert fingerprint(model_copy, config, "int8") not in {first, quantized}, "so does another format"
    assert len(first) == 32
    split = make_llama(tmp_path / "split", max_shard_size="60KB")
    assert len(list(split.glob("*.safetensors"))) > 1
    assert fingerprint(split, read_config(split)) == first
    tensors = load_file(model_copy / "model.safetensors")
    tensors["model.norm.weight"][-1] += 1e-3
    save_file(tensors, model_copy / "model.safetensors")
    changed = fingerprint(model_copy, config)
    assert changed != first
    _edit(model_copy, rms_norm_eps=1e-3)
    assert fingerprint(model_copy, read_config(model_copy)) not in {first, changed}
