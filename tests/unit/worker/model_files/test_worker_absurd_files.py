"""Model files with absurd contents are refused quickly, with the name of the file and the field."""

import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.worker.engine.checkpoint.safetensors_file import (
    INDEX,
    LONGEST_HEADER,
    read_header,
    weight_files,
)
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.model_files.json_files import (
    MAX_CONFIG_BYTES,
    MAX_INDEX_BYTES,
    MAX_TOKENIZER_BYTES,
    shown,
)
from services.worker.model_files.model_dir import load_model_dir
from shared.errors import InvalidRequest
from tests.kits.engine.published_configs import LLAMA, QWEN2, QWEN3, YARN_SCALING

SOON_S = 1.0  # seconds; using the absurd sizes would take minutes or all memory


@contextmanager
def refusal(*words: str, error: type[Exception] = ModelError) -> Iterator[None]:
    began = time.process_time()
    with pytest.raises(error) as caught:
        yield
    assert time.process_time() - began < SOON_S
    said = str(caught.value)
    assert len(said) < 1000
    for word in words:
        assert word in said, said


def write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("base", "changes", "field"),
    [
        (LLAMA, {"hidden_size": 10**12}, "hidden_size"),
        (LLAMA, {"hidden_size": 10**400}, "hidden_size"),
        (LLAMA, {"hidden_size": -4096}, "hidden_size"),
        (LLAMA, {"hidden_size": 4097}, "hidden_size"),
        (LLAMA, {"hidden_size": 1e99}, "hidden_size"),
        (LLAMA, {"hidden_size": list(range(100_000))}, "hidden_size"),
        (LLAMA, {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        (LLAMA, {"vocab_size": 2**40}, "vocab_size"),
        (LLAMA, {"vocab_size": 0}, "vocab_size"),
        (LLAMA, {"vocab_size": "x" * 10**6}, "vocab_size"),
        (LLAMA, {"intermediate_size": 2**50}, "intermediate_size"),
        (LLAMA, {"num_attention_heads": 2**31}, "num_attention_heads"),
        (LLAMA, {"num_key_value_heads": 5}, "num_key_value_heads"),
        (LLAMA, {"num_key_value_heads": 2**31}, "num_key_value_heads"),
        (QWEN3, {"head_dim": 10**9}, "head_dim"),
        (LLAMA, {"max_position_embeddings": 2**62}, "max_position_embeddings"),
        (LLAMA, {"rope_theta": float("nan")}, "rope_theta"),
        (LLAMA, {"rope_theta": float("inf")}, "rope_theta"),
        (LLAMA, {"rope_theta": 10**400}, "rope_theta"),
        (LLAMA, {"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": float("nan")}}, "rope_scaling.factor"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 1e11}}, "max_position_embeddings"),
        (LLAMA, {"rope_scaling": {"type": "x" * 10**6}}, "rope_scaling"),
        (LLAMA, {"rope_scaling": YARN_SCALING | {"original_max_position_embeddings": 2**62}}, "rope_scaling"),
        (LLAMA, {"architectures": ["x" * 10**6]}, "architecture"),
        (LLAMA, {"architectures": ["x"] * 10**5}, "architectures"),
        (QWEN2, {"layer_types": ["full_attention"] * 10**5}, "layer_types"),
        (QWEN2, {"use_sliding_window": True, "sliding_window": 10**30}, "sliding_window"),
    ],
)
def test_a_number_beyond_any_model(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    with refusal(str(tmp_path / "config.json"), field):
        read_config(write(tmp_path, base | changes))


def test_too_many_ranks_for_very_many_heads_are_told_of_soon(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, LLAMA | {"num_attention_heads": 4096, "hidden_size": 8192}))
    with refusal("tensor_parallel=4097"):
        config.check_split(4097)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**30)


def nested(path: Path) -> None:
    path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)


def thousands_of_digits(path: Path) -> None:
    path.write_text('{"hidden_size": ' + "9" * 10_000 + "}")


def pipe(path: Path) -> None:
    os.mkfifo(path)


MAKERS = [sparse, nested, thousands_of_digits, pipe]


@pytest.mark.parametrize("make", MAKERS)
def test_a_config_that_is_no_config(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "config.json")
    with refusal(str(tmp_path / "config.json")):
        read_config(tmp_path)
    with refusal(str(tmp_path / "config.json"), error=InvalidRequest):
        load_model_dir(tmp_path)


@pytest.mark.parametrize("name", ["my model", "a\x9bb", "a\u202eb", "x" * 129])
def test_a_directory_whose_name_no_message_carries(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with refusal(ascii(name)[1:-1].replace("\\\\", "\\"), "RYZ_MODEL_NAME", error=InvalidRequest):
        load_model_dir(tmp_path / name)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("make", MAKERS)
def test_files_beside_it(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    write(tmp_path, LLAMA | {"max_position_embeddings": 128})
    (tmp_path / "tokenizer.json").write_text("{}")
    make(tmp_path / name)
    with refusal(str(tmp_path / name), error=InvalidRequest):
        load_model_dir(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_files_that_are_too_large_are_not_read(tmp_path: Path, name: str) -> None:
    write(tmp_path, LLAMA | {"max_position_embeddings": 128})
    (tmp_path / "tokenizer.json").write_text(
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []}'
    )
    sparse(tmp_path / name)
    with refusal(str(tmp_path / name), "limit", error=InvalidRequest):
        load_model_dir(tmp_path)


@pytest.mark.parametrize("length", [-1, 0, 2**40, 10**40])
def test_a_context_beyond_any_model(tmp_path: Path, length: int) -> None:
    write(tmp_path, LLAMA | {"max_position_embeddings": length})
    (tmp_path / "tokenizer.json").write_text("{}")
    with refusal("config.json", "max_position_embeddings", error=InvalidRequest):
        load_model_dir(tmp_path)


def test_end_tokens_without_end(tmp_path: Path) -> None:
    write(tmp_path, LLAMA | {"max_position_embeddings": 128, "eos_token_id": list(range(10**5))})
    (tmp_path / "tokenizer.json").write_text("{}")
    with refusal("eos_token_id", error=InvalidRequest):
        load_model_dir(tmp_path)


@pytest.mark.parametrize("make", MAKERS)
def test_an_index_that_is_none(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / INDEX)
    with refusal(str(tmp_path / INDEX)):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "F32", "shape": [2**40] * 100_000, "data_offsets": [0, 4]}, "100000 dimensions"),
        ({"dtype": "F32", "shape": [10**300], "data_offsets": [0, 4]}, "no proper"),
        ({"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}, "4 bytes"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 10**300]}, "no proper"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 2**50]}, "would end at byte"),
    ],
)
def test_headers_of_weights(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    file = tmp_path / "model.safetensors"
    header = json.dumps({"weight": entry}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with refusal(str(file), words):
        read_header(file)


@pytest.mark.parametrize("length", [2**64 - 1, 2**40, LONGEST_HEADER + 1])
def test_a_header_that_is_longer_than_its_file_or_the_limit(tmp_path: Path, length: int) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length))
    os.truncate(file, LONGEST_HEADER + 100)
    with refusal(str(file), "header"):
        read_header(file)


def test_a_long_name_of_a_tensor_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    header = json.dumps({"x" * 10**6: {}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    with refusal(str(file), "1000000 characters"):
        read_header(file)


def test_limits_leave_room_for_what_there_is() -> None:
    assert MAX_CONFIG_BYTES >= 2**20
    assert MAX_INDEX_BYTES >= 2**24
    assert MAX_TOKENIZER_BYTES >= 2**26


def test_what_is_shown_of_a_value_is_short() -> None:
    values: list[object] = [10**5000, "x" * 10**6, [0] * 10**6, {"a": "b" * 10**6}, None, 1.5, [[10**5000]]]
    assert all(len(shown(value)) < 120 for value in values)
