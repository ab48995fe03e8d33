"""Decoding a message of the largest size takes bounded memory and time, whatever lengths it announces.

Each message is decoded in its own process, which reports its CPU time and the growth of its memory.
"""

import json
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest

from shared import messages
from shared.codec import decode
from shared.errors import InvalidRequest
from shared.messages.base import SMALL

MAX_ITEMS = 65_536  # the longest array that some decoders allow
PAYLOAD = 2**20  # the broker's max_payload
MOST_BYTES = 192 * 2**20  # measured: up to 128 MiB, for arrays in arrays that announce more than they hold
MOST_CPU_S = 4.0  # measured: 0.25
PROGRAM = """
import json, resource, sys, time
from shared.codec import decode, fields_of
from shared.errors import RyzError
from shared.messages import FrameBatch, GenerateRequest, SessionCommit, Work

data = sys.stdin.buffer.read()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, began, refused = peak(), time.process_time(), 0
for kind in (GenerateRequest, Work, FrameBatch, SessionCommit):
    try:
        decode(data, kind)
    except RyzError:
        refused += 1
fields_of(data)
print(json.dumps([(time.process_time() - began) / 5, peak() - before, refused]))
"""


def array(announced: int) -> bytes:
    return b"\xdd" + struct.pack(">I", announced)


def field(name: str, value: bytes) -> bytes:
    return b"\x81" + bytes([0xA0 | len(name)]) + name.encode() + value


def full(item: bytes) -> bytes:
    """Returns as many arrays of `item` as fit into `PAYLOAD` bytes, each as long as allowed."""
    each = array(min(MAX_ITEMS, PAYLOAD // len(item) - 64)) + item * min(MAX_ITEMS, PAYLOAD // len(item) - 64)
    count = max(1, PAYLOAD // len(each))
    return array(count) + each * count


BOMBS: dict[str, Callable[[], bytes]] = {
    "empty maps in a field": lambda: field("messages", full(b"\x80")),
    "empty arrays in an unknown field": lambda: field("x", full(b"\x90")),
    "empty maps where messages are": lambda: field("messages", array(4096) + b"\x80" * 4096),
    "one array of everything": lambda: field("messages", array(PAYLOAD - 20) + b"\x80" * (PAYLOAD - 20)),
    "arrays in arrays": lambda: b"\x91" * PAYLOAD,
    "maps in maps": lambda: b"\x81\xa1x" * (PAYLOAD // 3),
    "arrays in arrays that announce more": lambda: array(MAX_ITEMS) * 900 + full(b"\x90")[:-5000],
    "arrays that announce all there could be": lambda: array(2**32 - 1) * 1000,
    "a string that is not there": lambda: b"\xdb\xff\xff\xff\xff",
    "bytes that are not there": lambda: b"\xc6\xff\xff\xff\xff",
    "an extension that is not there": lambda: b"\xc9\xff\xff\xff\xff\x01",
    "extensions": lambda: field("x", full(b"\xd4\x01\x00")),
    "points in time": lambda: field("x", full(b"\xd6\xff\x00\x00\x00\x01")),
    "one long string": lambda: field("model", b"\xdb" + struct.pack(">I", 10**6) + b"a" * 10**6),
    "keys with one hash": lambda: (
        b"\xde" + struct.pack(">H", 4046)
        + b"".join(b"\xcb" + struct.pack(">d", 2.0 ** (61 * power) * factor) + b"\xc0"
                   for power in range(-17, 17) for factor in range(1, 120))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BOMBS))
def test_decoding_is_bounded(name: str) -> None:
    data = BOMBS[name]()
    assert len(data) <= PAYLOAD
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=data, capture_output=True, timeout=50, check=True
    )
    cpu_s, grown, refused = json.loads(done.stdout)
    assert refused == 4
    assert grown < MOST_BYTES
    assert cpu_s < MOST_CPU_S


@pytest.mark.parametrize("kind", [kind for kind in vars(messages).values() if getattr(kind, "max_bytes", 0)])
def test_small_messages_are_refused_unread_when_they_are_large(kind: type[messages.Wire]) -> None:
    most = f"{kind.__name__}: {PAYLOAD} bytes, and may have {kind.max_bytes}"
    with pytest.raises(InvalidRequest, match=most):
        decode(b"\x91" * PAYLOAD, kind)
    with pytest.raises(InvalidRequest, match=r"valid MessagePack|got `array`"):
        decode(b"\x91" * SMALL, kind)
