"""Files of adapters that are missing, damaged, or not where they should be are refused in one sentence."""

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.worker.adapters.adapter import read_adapter
from services.worker.adapters.description import AdapterError
from services.worker.adapters.inspection import inspect_adapter
from tests.kits.adapters.handmade import (
    DEMO,
    QUERIES,
    WEIGHTS,
    demo_base,
    refusal,
    write_gguf_adapter,
    write_peft,
)


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    assert f"{tmp_path / 'none'} does not exist" in refusal(tmp_path / "none")
    assert f"{tmp_path} holds no {WEIGHTS}" in refusal(tmp_path)
    assert f"{DEMO} holds no {WEIGHTS}" in refusal(DEMO)
    (tmp_path / "text").write_text("hello, this is no adapter")
    assert "is no GGUF file" in refusal(tmp_path / "text")
    source = write_peft(tmp_path / "a")
    (source / "adapter_config.json").unlink()
    assert "adapter_config.json does not exist" in refusal(source)
    os.mkfifo(tmp_path / "pipe")
    assert "is no regular file" in refusal(tmp_path / "pipe")


def test_a_path_that_no_file_can_have() -> None:
    assert "does not exist" in refusal(Path("nul\0byte"))
    assert "cannot be read" in refusal(Path("x" * 400))


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    source = write_peft(tmp_path / "a")
    (source / WEIGHTS).rename(source / "adapter_model.bin")
    assert "is a pickle, which can run code when it is read" in refusal(source)


@pytest.mark.parametrize("name", [WEIGHTS, "adapter_config.json"])
def test_links_out_of_the_directory(tmp_path: Path, name: str) -> None:
    source = write_peft(tmp_path / "a")
    (source / name).rename(tmp_path / name)
    (source / name).symlink_to(tmp_path / name)
    assert f"{source / name} leads out of its directory" in refusal(source)
    (source / name).unlink()
    (source / name).symlink_to(source / name)  # a loop
    assert str(source / name) in refusal(source)
    (source / name).unlink()
    (source / name).mkdir()
    assert f"{source / name} is no regular file" in refusal(source)


def test_links_within_the_directory_and_to_it_are_followed(tmp_path: Path) -> None:
    source = write_peft(tmp_path / "a")
    (source / WEIGHTS).rename(source / "weights")
    (source / WEIGHTS).symlink_to("weights")
    (tmp_path / "link").symlink_to(source)
    assert inspect_adapter(tmp_path / "link", DEMO).rank == 4


def _header(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        text = change(header)
        new = (text if isinstance(text, str) else json.dumps(header)).encode()
        return struct.pack("<Q", len(new)) + new + data[8 + length :]

    return damage


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "does not fit into its 0 bytes"),
    "cut in the header": (lambda data: data[:100], "does not fit into its 100 bytes"),
    "cut in the data": (lambda data: data[:-100], "would end at byte"),
    "gigantic header": (
        lambda data: struct.pack("<Q", 2**62) + data[8:],
        "a header of 4611686018427387904 bytes",
    ),
    "no JSON": (lambda data: data[:8] + b"x" + data[9:], "its header is no JSON"),
    "nested deeply": (_header(lambda header: "[" * 100_000), "its header is no JSON"),
    "a list": (_header(lambda header: "[]"), "its header is no JSON object"),
    "nothing in it": (_header(lambda header: "{}"), "holds no matrices of an adapter"),
    "the same name twice": (
        _header(lambda header: json.dumps(header)[:-1] + "," + json.dumps(header)[1:]),
        "is in it twice",
    ),
    "negative offsets": (
        _header(lambda header: header[f"{QUERIES}.lora_A.weight"].update(data_offsets=[-4, 8])),
        "no proper dtype, shape and data_offsets",
    ),
    "bytes of another": (
        _header(
            lambda header: header.update({f"{QUERIES}.lora_A.weight": header[f"{QUERIES}.lora_B.weight"]})
        ),
        "share bytes",
    ),
    "a type without a size": (
        _header(lambda header: header[f"{QUERIES}.lora_A.weight"].update(dtype="X9")),
        "has type X9, supported: BF16, F16, F32",
    ),
}


@pytest.mark.parametrize("name", list(DAMAGES))
def test_damaged_weights(tmp_path: Path, name: str) -> None:
    damage, sentence = DAMAGES[name]
    source = write_peft(tmp_path / "a")
    (source / WEIGHTS).write_bytes(damage((source / WEIGHTS).read_bytes()))
    found = refusal(source)
    assert sentence in found
    assert str(source / WEIGHTS) in found


@pytest.mark.parametrize("kind", ["peft", "gguf"])
def test_flipped_bytes_are_refused_or_read(tmp_path: Path, kind: str) -> None:
    draw, refused, base = random.Random(kind), 0, demo_base()
    if kind == "peft":
        source = write_peft(tmp_path / "a")
        files = [source / WEIGHTS, source / "adapter_config.json"]
    else:
        tensors = {
            "blk.0.attn_q.weight.lora_a": np.ones((4, 192), np.float32),
            "blk.0.attn_q.weight.lora_b": np.ones((256, 4), np.float32),
        }
        source = write_gguf_adapter(tmp_path / "adapter.gguf", tensors)
        files = [source]
    for _ in range(300):
        path = draw.choice(files)
        good = path.read_bytes()
        damaged = bytearray(good)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(min(len(damaged), 600))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            read_adapter(source, base)
        except AdapterError:
            refused += 1
        path.write_bytes(good)
    assert refused > 100
