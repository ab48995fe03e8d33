"""Ids of tokens that serving does not use are no reason to refuse a model; those that it uses are checked."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.worker.engine.config.read_config import read_config
from services.worker.model_files.load_model import load_model
from shared.errors import InvalidRequest
from tests.kits.engine.published_configs import LLAMA
from tests.kits.worker.gguf_vocabularies import byte_level_keys, piece_keys, write_gguf
from tests.kits.worker.tokenizers import byte_level

NO_TOKEN = 2**32 - 1  # of llama.cpp
SHAPE = {"max_position_embeddings": 128, "eos_token_id": 261}
BOS_TEMPLATE = "{{ bos_token }}{{ messages[0].content }}"


@pytest.mark.parametrize(
    "keys",
    [
        {"ggml.padding_token_id": NO_TOKEN},
        {"ggml.padding_token_id": 263},
        {"ggml.padding_token_id": "x"},
        {"ggml.unknown_token_id": NO_TOKEN},
        {"ggml.unknown_token_id": 10**6},
        {"ggml.seperator_token_id": NO_TOKEN, "ggml.mask_token_id": 10**6, "ggml.cls_token_id": "x"},
        {"ggml.bos_token_id": NO_TOKEN},
        {"ggml.bos_token_id": 10**6, "ggml.add_bos_token": False},
        {"ggml.eot_token_id": NO_TOKEN, "ggml.eom_token_id": NO_TOKEN},
        {"ggml.eos_token_id": NO_TOKEN},
    ],
)
def test_a_file_with_ids_that_nothing_reads(tmp_path: Path, keys: dict[str, Any]) -> None:
    model = load_model(write_gguf(tmp_path / "x.gguf", byte_level_keys() | keys))
    assert model.tokenizer.encode("the", add_special_tokens=True) == [257]
    assert model.eos_ids == {261}


def test_a_vocabulary_of_pieces_without_padding(tmp_path: Path) -> None:
    keys = piece_keys({"a": -1.0}) | {"ggml.padding_token_id": NO_TOKEN, "ggml.bos_token_id": NO_TOKEN}
    assert load_model(write_gguf(tmp_path / "x.gguf", keys)).eos_ids == {2}


@pytest.mark.parametrize(
    ("keys", "role"),
    [
        ({"ggml.eos_token_id": 263}, "eos"),
        ({"ggml.eot_token_id": 263}, "eot"),
        ({"ggml.eom_token_id": 10**6}, "eom"),
        ({"ggml.bos_token_id": 263, "ggml.add_bos_token": True}, "bos"),
        ({"ggml.bos_token_id": 263, "ggml.add_bos_token": False, "chat_template": BOS_TEMPLATE}, "bos"),
    ],
)
def test_ids_that_are_used_are_checked(tmp_path: Path, keys: dict[str, Any], role: str) -> None:
    path = write_gguf(tmp_path / "x.gguf", byte_level_keys() | keys)
    with pytest.raises(InvalidRequest, match=rf"tokenizer\.ggml\.{role}_token_id` must be the id of one of"):
        load_model(path)


def test_the_unknown_token_of_pieces_is_checked(tmp_path: Path) -> None:
    keys = piece_keys({"a": -1.0}) | {"ggml.unknown_token_id": 10**6}
    with pytest.raises(InvalidRequest, match=r"unknown_token_id` must be"):
        load_model(write_gguf(tmp_path / "x.gguf", keys))


@pytest.mark.parametrize("key", ["pad_token_id", "bos_token_id", "sep_token_id", "decoder_start_token_id"])
@pytest.mark.parametrize("value", [-1, NO_TOKEN, "x", None, [1]])
def test_a_directory_with_ids_that_nothing_reads(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | SHAPE | {key: value}))
    (tmp_path / "generation_config.json").write_text(json.dumps({key: value, "eos_token_id": 261}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": None, "unk_token": 7}))
    byte_level().save(str(tmp_path / "tokenizer.json"))
    read_config(tmp_path)
    assert load_model(tmp_path).eos_ids == {261}
