"""`msgpack`, which writes what has no struct, and msgspec, which writes messages, read each other's bytes."""

import json
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.codec import decode, encode, fields_of
from shared.codec import pack_plain as pack
from shared.codec import unpack_plain as unpack
from shared.messages import Wire
from tests.contract.golden_messages import EXAMPLES, GOLDEN_FILE

GOLDEN: dict[str, str] = json.loads(GOLDEN_FILE.read_text())
NAMES = [type(one).__name__ for one in EXAMPLES]
MANY = {str(number): number for number in range(16)}

# at each border of the format's lengths and numbers
PLAIN: dict[str, tuple[Any, str]] = {
    "none": (None, "c0"),
    "booleans": ([True, False], "92c3c2"),
    "small numbers": ([0, 127, -1, -32], "94007fffe0"),
    "bytes": ([128, 255, -33, -128], "94cc80ccffd0dfd080"),
    "16 bits": ([256, 65535, -129, -32768], "94cd0100cdffffd1ff7fd18000"),
    "32 bits": ([65536, 2**32 - 1, -(2**31)], "93ce00010000ceffffffffd280000000"),
    "64 bits": ([2**32, 2**64 - 1, -(2**63)], "93cf0000000100000000cfffffffffffffffffd38000000000000000"),
    "fractions": ([0.5, -0.0], "92cb3fe0000000000000cb8000000000000000"),
    "texts": (["", "ä", "x" * 31, "x" * 32], f"94a0a2c3a4bf{'78' * 31}d920{'78' * 32}"),
    "bytes of no text": ([b"", b"\xff"], "92c400c401ff"),
    "a list of 16": (list(range(16)), "dc0010000102030405060708090a0b0c0d0e0f"),
    "a map": ({"a": {1: []}}, "81a1618101" + "90"),
    "a map of 16": (MANY, "de0010" + "".join(pack(item).hex() for pair in MANY.items() for item in pair)),
}

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=20) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=20)
    ),
    max_leaves=40,
)  # fmt: skip


@pytest.mark.parametrize("name", list(PLAIN))
def test_both_write_and_read_the_same_bytes(name: str) -> None:
    value, golden = PLAIN[name]
    assert pack(value).hex() == msgspec.msgpack.encode(value).hex() == golden
    assert unpack(bytes.fromhex(golden)) == msgspec.msgpack.decode(bytes.fromhex(golden)) == value


@given(plain)
def test_both_write_the_same_bytes_of_any_plain_value(value: Any) -> None:
    data = pack(value)
    assert msgspec.msgpack.encode(value) == data
    assert msgspec.msgpack.decode(data) == value
    assert unpack(data) == value
    assert unpack(memoryview(data)) == value


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_golden_messages_are_plain_data_to_msgpack(example: Wire) -> None:
    golden = bytes.fromhex(GOLDEN[type(example).__name__])
    fields = unpack(golden)
    assert fields == msgspec.msgpack.decode(golden)
    assert decode(pack(fields), type(example)) == example
    if len(type(example).__struct_fields__) < 16:  # msgspec gives more fields a longer header of their map
        assert pack(fields) == golden == encode(example)


@given(st.binary(max_size=100))
def test_random_bytes_are_refused_by_a_value_error_or_read_as_by_msgspec(data: bytes) -> None:
    try:
        value = unpack(data)
    except ValueError:
        return
    if "Timestamp" not in repr(value):
        assert repr(value) == repr(msgspec.msgpack.decode(data, strict=False))


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x80tail", b"\xdf\xff\xff\xff\xff", b"\xa1\xff", b"\x81\x91\x01\x02", b"\xd4\x05\x01",
     b"\x91" * 5000 + b"\xc0"],
    ids=["empty", "unused code", "more behind", "long map", "no UTF-8", "list as key", "extension", "deep"],
)  # fmt: skip
def test_what_is_no_plain_data_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"no plain MessagePack: \S"):
        unpack(data)


def test_the_sender_of_a_message_of_no_struct_is_read_by_msgpack(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack({"request_id": "r-1", "attempt": 2, "model": 7, "reply_to": "x" * 2000})
    assert fields_of(data) == {"request_id": "r-1", "attempt": 2}
    monkeypatch.setattr(msgpack, "unpackb", lambda data, **_: f"of {len(data)} bytes")
    assert fields_of(data) == {"request_id": "of 4 bytes", "attempt": "of 1 bytes"}
