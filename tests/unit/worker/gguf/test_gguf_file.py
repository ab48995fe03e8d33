"""GGUF headers are read exactly; damaged and hostile ones are refused in a sentence and little memory."""

import os
import random
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFEndian, GGUFValueType, GGUFWriter

from services.worker.gguf import header_bytes
from services.worker.gguf.gguf_file import MOST_KEYS, MOST_TENSORS, read_gguf
from services.worker.gguf.header_bytes import LONGEST_HEADER, MOST_VALUES, BadGguf

VALUES: dict[str, tuple[GGUFValueType, Any]] = {
    "a.u8": (GGUFValueType.UINT8, 255),
    "a.i8": (GGUFValueType.INT8, -128),
    "a.u16": (GGUFValueType.UINT16, 65535),
    "a.i16": (GGUFValueType.INT16, -2),
    "a.u32": (GGUFValueType.UINT32, 2**32 - 1),
    "a.i32": (GGUFValueType.INT32, -3),
    "a.u64": (GGUFValueType.UINT64, 2**64 - 1),
    "a.i64": (GGUFValueType.INT64, -(2**63)),
    "a.f32": (GGUFValueType.FLOAT32, 0.5),
    "a.f64": (GGUFValueType.FLOAT64, 1e300),
    "a.yes": (GGUFValueType.BOOL, True),
    "a.text": (GGUFValueType.STRING, "é\0🙂"),
    "a.texts": (GGUFValueType.ARRAY, ["", "ab", "日本"]),
    "a.numbers": (GGUFValueType.ARRAY, [1, -2, 3]),
    "a.floats": (GGUFValueType.ARRAY, [0.25, -1.5]),
    "a.flags": (GGUFValueType.ARRAY, [True, False]),
}
TENSORS = {"one.weight": (3, 8), "two.bias": (5,), "three": (2, 3, 4)}


def write(path: Path, endian: GGUFEndian = GGUFEndian.LITTLE) -> Path:
    writer = GGUFWriter(path, "llama", endianess=endian)
    for key, (kind, value) in VALUES.items():
        writer.add_key_value(key, value, kind)
    for number, (name, shape) in enumerate(TENSORS.items()):
        writer.add_tensor(name, np.full(shape, number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("good") / "good.gguf")


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def entry(
    name: str = "t", shape: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0, num_dimensions: int = -1
) -> bytes:
    count = len(shape) if num_dimensions < 0 else num_dimensions
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", count, *shape, kind, offset)


def header(keys: list[bytes], tensors: list[bytes], version: int = 3) -> bytes:
    named = [text("general.architecture") + struct.pack("<I", 8) + text("llama"), *keys]
    return (
        b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(named)) + b"".join(named) + b"".join(tensors)
    )


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + values


def refusal(path: Path) -> str:
    """The sentence; it is one line that names the file and a remedy."""
    with pytest.raises(BadGguf) as error:
        read_gguf(path)
    sentence = str(error.value)
    assert "\n" not in sentence
    assert path.parent.name in sentence
    assert "; " in sentence, "no remedy"
    assert len(sentence) < 400
    return sentence


def test_every_type_of_value_is_read_as_it_was_written(good: Path) -> None:
    file = read_gguf(good)
    assert file.architecture == "llama"
    assert {name: file.metadata[name] for name in VALUES} == {
        name: value for name, (_, value) in VALUES.items()
    }
    assert type(file.metadata["a.yes"]) is bool
    assert [type(flag) for flag in file.metadata["a.flags"]] == [bool, bool]


def test_tensors_are_where_the_file_has_them(good: Path) -> None:
    file, data = read_gguf(good), good.read_bytes()
    assert {name: tensor.shape for name, tensor in file.tensors.items()} == TENSORS
    for number, name in enumerate(TENSORS):
        tensor = file.tensors[name]
        assert tensor.type == GGMLQuantizationType.F32
        values = np.frombuffer(data[tensor.begin : tensor.end], np.float32)
        assert (values == number).all()
        assert values.size == np.prod(TENSORS[name])


def test_a_reader_without_the_vocabulary_passes_over_it(tmp_path: Path) -> None:
    keys = [
        key("tokenizer.ggml.tokens", 9, array(8, 2, text("a") + text("bc"))),
        key("tokenizer.ggml.scores", 9, array(6, 2, struct.pack("<2f", 1, 2))),
        key("tokenizer.ggml.model", 8, text("gpt2")),
        key("llama.list", 9, array(4, 1, struct.pack("<I", 7))),
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(header(keys, [entry()]) + bytes(128))
    whole, part = read_gguf(path), read_gguf(path, vocabulary=False)
    assert whole.metadata["tokenizer.ggml.tokens"] == ["a", "bc"]
    assert part.metadata["tokenizer.ggml.tokens"] == part.metadata["tokenizer.ggml.scores"] == []
    assert (part.metadata["tokenizer.ggml.model"], part.metadata["llama.list"]) == ("gpt2", [7])
    assert part.tensors == whole.tensors


HUGE = 2**63
REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "does not begin with GGUF"),
    "another kind": (b"PK\3\4" + bytes(100), "does not begin with GGUF"),
    "version 1": (header([], [], version=1), "version 1, supported are 2 and 3"),
    "version 4": (header([], [], version=4), "version 4"),
    "big endian": (header([], [], version=3 << 24), "big-endian"),
    "2^63 tensors": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0) + bytes(64), f"claims {HUGE} tensors"),
    "2^63 keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE) + bytes(64), f"claims {HUGE} keys"),
    "many tensors": (b"GGUF" + struct.pack("<IQQ", 3, MOST_TENSORS, 0) + bytes(64), "0 bytes, 1 to"),
    "many keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, MOST_KEYS) + bytes(64), "0 bytes, 1 to"),
    "no architecture": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "general.architecture"),
    "a key of 2^63 bytes": (header([struct.pack("<QQ", HUGE, 0)], []), "a key has"),
    "a key twice": (header([key("k", 0, b"1")] * 2, []), "'k' is given twice"),
    "a key that is no text": (header([text(b"\xff") + bytes(9)], []), "a key is no UTF-8"),
    "a text of 2^63 bytes": (header([key("k", 8, struct.pack("<QQ", HUGE, 0))], []), "'k' would end"),
    "a text that is none": (header([key("k", 8, text(b"\xff\xfe"))], []), "'k' is no UTF-8"),
    "an unknown type of value": (header([key("k", 13, b"1")], []), "unknown type 13"),
    "a flag of 2": (header([key("k", 7, b"\2")], []), "neither true nor false"),
    "an array of 2^63": (header([key("k", 9, array(8, HUGE))], []), "more than"),
    "an array of 2^64 - 1": (header([key("k", 9, array(0, 2**64 - 1))], []), "more than"),
    "a long array": (header([key("k", 9, array(8, MOST_VALUES // 2))], []), "would end"),
    "an array of arrays": (header([key("k", 9, array(9, 1, array(9, 1) * 1000))], []), "array of arrays"),
    "an array of unknowns": (header([key("k", 9, array(99, 1))], []), "unknown type 99"),
    "alignment 0": (header([key("general.alignment", 4, struct.pack("<I", 0))], []), "alignment"),
    "alignment 48": (header([key("general.alignment", 4, struct.pack("<I", 48))], []), "alignment"),
    "alignment 2^31": (header([key("general.alignment", 4, struct.pack("<I", 2**31))], []), "alignment"),
    "alignment is a text": (header([key("general.alignment", 8, text("32"))], []), "alignment"),
    "a name of 2^40 bytes": (header([], [struct.pack("<Q", 2**40)]), "a tensor's name has"),
    "a tensor twice": (header([], [entry()] * 2) + bytes(256), "'t' is given twice"),
    "no dimensions": (header([], [entry(shape=())]) + bytes(128), "0 dimensions"),
    "5 dimensions": (header([], [entry(shape=(1,) * 5)]) + bytes(128), "5 dimensions"),
    "2^32 - 1 dimensions": (header([], [entry(num_dimensions=2**32 - 1)]) + bytes(128), "dimensions"),
    "a dimension of 0": (header([], [entry(shape=(8, 0))]) + bytes(128), r"shape \[0, 8\]"),
    "2^32 x 2^32": (header([], [entry(shape=(2**32, 2**32))]) + bytes(128), "shape"),
    "2^62 values": (header([], [entry(shape=(2**62,))]) + bytes(128), "would end"),
    "an unknown quantization": (header([], [entry(kind=4)]) + bytes(128), "unknown type 4"),
    "rows that are no blocks": (header([], [entry(shape=(40,), kind=8)]) + bytes(128), "Q8_0 stores 32"),
    "an offset of 4": (header([], [entry(offset=4)]) + bytes(128), "no multiple of 32"),
    "an offset of 2^63": (header([], [entry(offset=HUGE)]) + bytes(128), "would end"),
    "outside the file": (header([], [entry(shape=(64,))]) + bytes(128), "would end"),
    "overlapping": (header([], [entry("a", (16,)), entry("b", (8,), 0, 32)]) + bytes(256), "share bytes"),
    "the same place": (header([], [entry("a"), entry("b")]) + bytes(256), "share bytes"),
    "split into 2^32": (header([key("split.count", 4, b"\xff" * 4)], []), "split.count"),
    "a part by itself": (header([key("split.count", 2, b"\2\0")], []), "one of 2 parts"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_header_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    data, named = REFUSED[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    assert re.search(named, refusal(path))


def test_a_header_longer_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(header([key("k", 8, struct.pack("<Q", LONGEST_HEADER))], []))
    os.truncate(path, LONGEST_HEADER + 4096)  # a hole: it takes no disk
    assert "longer than the limit" in refusal(path)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: None])
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "thing.gguf"
    make(path)
    refusal(path)


def test_a_big_endian_file_is_refused_by_name(tmp_path: Path) -> None:
    assert "gguf-convert-endian" in refusal(write(tmp_path / "big.gguf", GGUFEndian.BIG))


def test_a_file_cut_anywhere_is_refused(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    tensors = read_gguf(good).tensors.values()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data)
    for length in reversed(range(max(tensor.end for tensor in tensors))):
        os.truncate(path, length)
        refusal(path)


def test_mutated_headers_are_read_or_refused(good: Path, tmp_path: Path) -> None:
    """10,000 files with bytes changed, and numbers replaced by extreme ones; memory stays small."""
    data = good.read_bytes()
    length = min(tensor.begin for tensor in read_gguf(good).tensors.values())
    path = tmp_path / "mutated.gguf"
    path.write_bytes(data)
    file = os.open(path, os.O_WRONLY)  # written in place: a new file for each would take most of the time
    extremes = [n % 2**64 for n in (0, 1, 2**31, 2**32 - 1, 2**62, 2**63, -1, 255, len(data))]
    chance, refused = random.Random(14), []
    tracemalloc.start()
    try:
        for turn in range(10_000):
            if turn == 1_000:  # tracing takes most of the time
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            changed = bytearray(data)
            for _ in range(chance.choice((1, 1, 2, 8))):
                position = chance.randrange(length)
                number = struct.pack(
                    "<Q", chance.choice(extremes) if chance.random() < 0.5 else chance.getrandbits(64)
                )
                count = chance.choice((1, 4, 8))
                changed[position : position + count] = number[:count]
            os.pwrite(file, changed[: len(data)], 0)
            try:
                read_gguf(path)
            except BadGguf as error:
                refused.append(str(error))
    finally:
        tracemalloc.stop()
        os.close(file)
    assert 5_000 < len(refused) < 10_000
    assert not any("\n" in sentence for sentence in refused)
    assert peak < 8 * header_bytes.CHUNK


def test_the_largest_header_takes_bounded_memory(tmp_path: Path) -> None:
    """As many short texts as are allowed: the case that takes the most memory for its length."""
    path = tmp_path / "most.gguf"
    count = MOST_VALUES // 32  # a part, to be quick
    path.write_bytes(header([key("k", 9, array(8, count, text("ab") * count))], []))
    tracemalloc.start()
    try:
        read_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < LONGEST_HEADER + 80 * count


def split(path: Path, number: int, parts: int, tensors: list[bytes], count: int | None = None) -> Path:
    keys = [
        key("split.no", 2, struct.pack("<H", number)),
        key("split.count", 2, struct.pack("<H", parts if count is None else count)),
    ]
    folder = path / f"m-{number + 1:05d}-of-{parts:05d}.gguf"
    folder.write_bytes(header(keys, tensors) + bytes(512))
    return folder


def test_a_split_model_is_read_from_its_first_part(tmp_path: Path) -> None:
    first = split(tmp_path, 0, 3, [entry("a")])
    others = [split(tmp_path, 1, 3, [entry("b"), entry("c", offset=32)]), split(tmp_path, 2, 3, [entry("d")])]
    tensors = read_gguf(first).tensors
    assert {name: tensor.path for name, tensor in tensors.items()} == {
        "a": first,
        "b": others[0],
        "c": others[0],
        "d": others[1],
    }


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first = split(tmp_path, 0, 2, [entry("a")])
    assert "does not exist" in refusal(first)
    second = split(tmp_path, 1, 2, [entry("a")])
    assert "'a' is in" in refusal(first).replace("tensor a", "'a'")
    split(tmp_path, 1, 2, [entry("b")], count=3)
    assert "part 2 of 2" in refusal(first)
    assert "give the first one" in refusal(second)
