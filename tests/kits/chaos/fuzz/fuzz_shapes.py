"""Malformed messages as hypothesis strategies, from noise to nearly valid messages.

The nearly valid ones are the golden examples with fields dropped, replaced, doubled or nested, or with some
bytes changed. Many strings and numbers are ones that services know, so that messages pass the first checks.
"""

import json
import struct
from collections.abc import Callable
from typing import Any

import msgpack
from hypothesis import strategies as st

from tests.contract.golden_messages import GOLDEN_FILE

GOLDEN = {name: bytes.fromhex(data) for name, data in json.loads(GOLDEN_FILE.read_text()).items()}
LARGE = 2**20 - 4096  # bytes; the broker's limit, less room for headers

KNOWN_WORDS = (
    "demo", "default", "acme", "s1", "g0", "g1", "nobody", "r-1", "r-2", "user", "assistant", "auto",
    "append",
    "replace", "stream", "whole", "ready", "draining", "silent", "stop", "length", "tokens", "done", "failed",
)  # fmt: skip
HOSTILE_WORDS = (
    "", " ", "\0", "\n", "g0\n", "a\r\nPUB ryz.v1.cancel 0\r\n\r\n", ">", "*", "ryz.v1.cancel",
    "ryz.v1.work.g0",
    "_INBOX.>", "_INBOX.worker.x", "$SYS.REQ.SERVER.PING", "..", "a..b", ".", "../../etc/passwd", "{{7*7}}",
    "%s%n",
    "\ud7ff\ue000", "\u202e", "é" * 64, "\U0001f600" * 300, "a" * 65, "a" * 129, "a" * 70_000,
    "'; flushall", "*3\r\n$3\r\nSET\r\n",
)  # fmt: skip
EDGES = (0, 1, -1, 16, 17, 100, 1000, 1001, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1,
         -(2**31), -(2**63))  # fmt: skip

words = (
    st.sampled_from(KNOWN_WORDS) | st.sampled_from(HOSTILE_WORDS) | st.text(max_size=12)
    | st.from_regex(r"[A-Za-z0-9_-]{1,12}\Z")
)  # fmt: skip
numbers = st.sampled_from(EDGES) | st.integers(-(2**63), 2**64 - 1) | st.integers(0, 64) | st.floats()
scalars = (
    st.none() | st.booleans() | numbers | words | st.binary(max_size=24)
    | st.sampled_from([b"\xff" * 16, b"\0" * 64, b"a" * 5000, b"\x80", *GOLDEN.values()])
)  # fmt: skip
keys = words | st.integers(-3, 300) | st.booleans() | st.binary(max_size=4)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted(
    {str(key) for data in GOLDEN.values() for key in msgpack.unpackb(data, strict_map_key=False)} | {"x"}
)
NESTED = 5


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def _spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in plain data."""
    if len(path) >= NESTED or not isinstance(value, dict | list):
        return []
    found = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        found.append((*path, key))
        found += _spots(inner, (*path, key))
    return found


def _nested(depth: int) -> Any:
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def _drop(holder: Any, key: Any, _: st.DrawFn) -> None:
    del holder[key]


def _put(holder: Any, key: Any, draw: st.DrawFn) -> None:
    holder[key] = draw(values)


def _put_alike(holder: Any, key: Any, draw: st.DrawFn) -> None:
    """Replaces a value by one of the same type, which passes the type checks."""
    value = holder[key]
    if isinstance(value, str):
        holder[key] = draw(words)
    elif isinstance(value, bytes):
        holder[key] = draw(st.binary(max_size=40) | st.sampled_from([*GOLDEN.values(), b"\xff" * 32]))
    elif isinstance(value, list):
        holder[key] = value * draw(st.sampled_from((0, 2, 17, 300)))
    elif isinstance(value, int | float):
        holder[key] = draw(numbers)
    else:
        holder[key] = draw(values)


def _add(holder: Any, key: Any, draw: st.DrawFn) -> None:
    if isinstance(holder, dict):
        holder[draw(st.sampled_from(FIELDS) | keys)] = draw(values)
    else:
        holder.append(draw(values))


def _nest(holder: Any, key: Any, draw: st.DrawFn) -> None:
    holder[key] = _nested(draw(st.sampled_from((1, 15, 17, 200, 500))))


def _swell(holder: Any, key: Any, draw: st.DrawFn) -> None:
    size = draw(st.sampled_from((1000, 70_000, 900_000)))
    holder[key] = draw(
        st.sampled_from(("a" * size, b"a" * size, [0] * (size // 10), {n: n for n in range(size // 30)}))
    )


EDITS: tuple[Callable[[Any, Any, st.DrawFn], None], ...] = (
    _drop, _put, _put_alike, _put_alike, _put_alike, _add, _nest,
)  # fmt: skip


def edit_somewhere(draw: st.DrawFn, raw: Any) -> None:
    """Changes plain data at one random path."""
    if not (spots := _spots(raw)):
        return
    *path, key = draw(st.sampled_from(spots))
    holder = raw
    for step in path:
        holder = holder[step]
    edit = _swell if draw(st.integers(0, 99)) == 0 else draw(st.sampled_from(EDITS))
    edit(holder, key, draw)


@st.composite
def edited(draw: st.DrawFn, name: str) -> bytes:
    """The golden message with up to four fields changed, often with a new request id."""
    raw = msgpack.unpackb(GOLDEN[name], strict_map_key=False)
    for field, known in (("model", "demo"), ("group", "g0"), ("tenant", "default")):
        if isinstance(raw.get(field), str) and draw(st.booleans()):
            raw[field] = known
    if "request_id" in raw and draw(st.booleans()):
        raw["request_id"] = f"f-{draw(st.integers(0, 2**40))}"
    if name == "GenerateRequest":
        one = draw(st.sampled_from(("messages", "prompt", "prompt_token_ids")))
        if one != "messages":
            del raw["messages"]
            raw[one] = "Hello" if one == "prompt" else struct.pack("<3I", 1, 2, 3)
        if draw(st.booleans()):
            raw.pop("resume", None)
    if name == "Work":
        raw["request"] = draw(edited("GenerateRequest") | st.just(GOLDEN["GenerateRequest"]))
    for _ in range(draw(st.integers(0, 4))):
        edit_somewhere(draw, raw)
    try:
        return _pack(raw)
    except (OverflowError, ValueError):
        return GOLDEN[name]


@st.composite
def damaged(draw: st.DrawFn, name: str) -> bytes:
    """The golden message with bytes changed, removed or inserted, or truncated."""
    data = bytearray(GOLDEN[name])
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        position = draw(st.integers(0, len(data) - 1))
        how = draw(st.sampled_from(("set", "cut", "insert", "delete")))
        if how == "set":
            data[position] = draw(st.integers(0, 255))
        elif how == "cut":
            del data[position:]
        elif how == "insert":
            data[position:position] = draw(st.binary(min_size=1, max_size=6))
        else:
            del data[position : position + draw(st.integers(1, 6))]
    return bytes(data)


@st.composite
def announced(draw: st.DrawFn) -> bytes:
    """False lengths, deep nesting and unused types; a few are as large as the broker accepts."""
    head = draw(
        st.sampled_from((b"\xdc", b"\xdd", b"\xde", b"\xdf", b"\xc4", b"\xc6", b"\xc9", b"\xd9", b"\xdb"))
    )
    length = draw(st.sampled_from((0, 1, 255, 65_535, 65_536, 2**20, 2**31 - 1, 2**31, 2**32 - 1)))
    sized = head + struct.pack(">I", length)
    field = b"\x81" + _pack(draw(st.sampled_from(FIELDS)))
    large = draw(st.integers(0, 199)) == 0
    repeated = draw(
        st.sampled_from((b"\x91", b"\x81\xa1x", b"\x81\x80", sized, b"\xd6\xff\0\0\0\1", b"\x80", b"\xc1"))
    )
    tail = repeated * min(
        LARGE // len(repeated), draw(st.sampled_from((1, 17, 1023, 2000))) * (500 if large else 1)
    )
    return draw(
        st.sampled_from((sized, field + sized, sized + tail, field + tail, tail, field + sized + tail))
    )


def messages(name: str) -> st.SearchStrategy[bytes]:
    """Valid and malformed bytes for a place where that message is expected."""
    near = edited(name)
    other = st.sampled_from(sorted(GOLDEN)).flatmap(edited)
    shaped = values.map(_pack) | st.dictionaries(st.sampled_from(FIELDS), values, max_size=6).map(_pack)
    noise = announced() | st.binary(max_size=200)
    anything = near | near | near | near | damaged(name) | other | shaped | noise
    # repeated edits of nested lists could produce tens of megabytes
    return anything.map(lambda data: data[:LARGE])
