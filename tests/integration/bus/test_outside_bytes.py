"""An outside service that writes the broker's protocol by hand: odd bytes in subjects, inboxes and headers.

The broker passes most of them on. They must not reach a subscription of another subject or break the
connection of a leader or a router.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgpack

from shared import codec
from shared.errors import Unavailable
from shared.messages import Cancel, Done
from tests.kits.outside_users import A, World, world
from tests.kits.waiting import PATIENCE_S, until

OWN = f"ryz.v1.tenant.{A.tenant}.{A.user}"


class Raw:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, subject: bytes, data: bytes, reply: bytes = b"") -> None:
        words = [b"PUB", subject, *([reply] if reply else []), b"%d" % len(data)]
        self._writer.write(b" ".join(words) + b"\r\n" + data + b"\r\n")

    def send_with(self, headers: bytes, subject: bytes, data: bytes) -> None:
        head = b"NATS/1.0\r\n" + headers + b"\r\n\r\n"
        self._writer.write(b"HPUB %s %d %d\r\n" % (subject, len(head), len(head) + len(data)))
        self._writer.write(head + data + b"\r\n")

    async def answered(self) -> None:
        """Asserts that the broker has accepted everything sent so far."""
        self._writer.write(b"PING\r\n")
        line = b"INFO"  # the broker sends a new client a second INFO
        while line.startswith(b"INFO"):
            line = await asyncio.wait_for(self._reader.readline(), PATIENCE_S)
        assert line == b"PONG\r\n", line


@asynccontextmanager
async def raw(around: World) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", around.broker.port, limit=2**20)
    await reader.readline()
    word = around.broker.passwords[A.user]
    options = {"user": A.user, "pass": word, "verbose": False, "headers": True, "protocol": 1}
    writer.write(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
    made = Raw(reader, writer)
    await made.answered()
    try:
        yield made
    finally:
        writer.close()
        await writer.wait_closed()


async def all_goes_on(around: World) -> None:
    """Asserts that A and B get answers and that the broker has closed neither connection."""
    for number in range(3):
        done = await around.b.run(around.b.ask(f"after-{number}", sampling={"max_tokens": 2}))
        assert isinstance(done, Done)
    said = around.broker.log.read_text()
    assert not [line for line in said.splitlines() if "[ERR]" in line and "user:service-a" not in line]
    assert not [
        entry
        for entry in around.kit.logs
        if entry["event"] in ("group lost", "connection to the broker lost")
    ]


def request(**fields: object) -> bytes:
    base = {"request_id": "odd", "model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    packed: bytes = msgpack.packb({**base, "reply_to": f"_INBOX.{A.user}.x", **fields})
    return packed


async def test_a_subject_reaches_no_other_subscription(tmp_path: Path) -> None:
    async with world(tmp_path) as around, raw(around) as attacker:
        instance = around.kit.instance_id
        gone = {
            "client": {"acc": "RYZ", "user": "worker", "name": f"worker/{instance}"},
            "reason": "Client Closed",
        }
        for space in (b"\x0b", b"\x0c", b"\x1c", b"\xa0", b"\xc2\x85"):
            for number in range(1, 40):
                attacker.send(
                    f"{OWN}.generate.demo".encode() + space + b"%d" % number, json.dumps(gone).encode()
                )
        await attacker.answered()
        await all_goes_on(around)


async def test_reply_subjects_break_no_connection(tmp_path: Path) -> None:
    async with world(tmp_path) as around, raw(around) as attacker:
        inbox = f"_INBOX.{A.user}.".encode()
        cancel = codec.encode(Cancel(request_id="x"))
        for reply in (b"a\x0bb", b"a\x0c7", b"\xff\xfe", b"a\x0b5", b"a" * 3900):
            attacker.send(f"{OWN}.cancel".encode(), cancel, inbox + reply)
            attacker.send(f"{OWN}.generate.demo".encode(), request(reply_to=""), inbox + reply)
        await attacker.answered()
        await all_goes_on(around)


async def test_inboxes_that_are_too_long_break_no_connection(tmp_path: Path) -> None:
    async with world(tmp_path) as around, raw(around) as attacker:
        for number, model in enumerate(("demo", "nosuch")):
            long = f"_INBOX.{A.user}." + "a" * 5000
            attacker.send(
                f"{OWN}.generate.{model}".encode(),
                request(request_id=f"l{number}", model=model, reply_to=long),
            )
        await attacker.answered()
        await all_goes_on(around)


async def test_a_connection_that_the_broker_closes_is_made_anew(tmp_path: Path) -> None:
    async with world(tmp_path, broker_config="max_control_line: 1024") as around:
        bus = around.gateway
        for _ in range(6):
            await until(lambda: bus.connected, 20)
            await bus.publish("ryz.v1." + "a" * 1500, b"")  # longer than what this broker reads
            with suppress(Unavailable):
                for _ in range(100):
                    await bus.publish("ryz.v1.cancel", b"x" * 3000)
                    await asyncio.sleep(0.0005)
        await until(lambda: bus.connected, 20)
        await bus.flush()
        assert bus.stats.disconnects > 0


async def test_headers_that_grow_break_no_connection(tmp_path: Path) -> None:
    async with world(tmp_path) as around, raw(around) as attacker:
        for number, headers in enumerate(
            (
                b"tracestate: " + b"\xff" * 400_000,
                b"tracestate: " + "ä".encode() * 3000,
                b"traceparent: a\nb\x00",
                b"traceparent: a\rb",
                b"Ryz-Timeout-Ms: -" + b"9" * 400,
                b"Ryz-Timeout-Ms: " + b"9" * 5000,
                "Ryz-Timeout-Ms: \u0661\u0660\u0660".encode(),
            )
        ):
            attacker.send_with(headers, f"{OWN}.generate.demo".encode(), request(request_id=f"h{number}"))
        large = request(request_id="big", messages=[{"role": "user", "content": "x" * 1_040_000}])
        attacker.send_with(b"tracestate: " + b"x" * 5000, f"{OWN}.generate.demo".encode(), large)
        await attacker.answered()
        await all_goes_on(around)
