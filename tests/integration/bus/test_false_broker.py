"""Another local user listens on the broker's port: our clients send it no password."""

import asyncio
from pathlib import Path

import pytest

from cli.stack.servers.broker import nats_answers
from shared.bus.nats import NatsBus
from shared.errors import Unavailable
from tests.kits.servers import GuardedNats, NatsServer, free_port
from tests.kits.stranger import FALSE_BROKER, needs_root, next_line, stranger
from tests.kits.waiting import PATIENCE_S, until

NOTHING = "b''"


@needs_root
async def test_a_start_sends_a_false_broker_nothing() -> None:
    port = free_port()
    with stranger(FALSE_BROKER, str(port)) as false:
        assert next_line(false) == "listens"
        with pytest.raises(Unavailable, match="a process of the user 48213 listens on port"):
            await NatsBus.connect(
                f"nats://worker:hush@127.0.0.1:{port}", name="test", connect_wait_s=3.0, local=True
            )
        assert next_line(false) == NOTHING


@needs_root
async def test_a_false_broker_in_the_place_of_a_killed_one_gets_nothing_and_the_real_one_is_found_again(
    tmp_path: Path,
) -> None:
    server = GuardedNats(tmp_path)
    server.start()
    bus = await NatsBus.connect(server.url("router"), name="test", local=True)
    try:
        server.stop(kill=True)
        with stranger(FALSE_BROKER, str(server.port)) as false:
            assert next_line(false) == "listens"
            await until(lambda: bus.stats.foreign_brokers > 2)
            assert not bus.connected
            assert [next_line(false) for _ in range(2)] == [NOTHING, NOTHING]
        server.start()
        await until(lambda: bus.connected)
        assert bus.stats.reconnects == 1
    finally:
        await bus.close()
        server.stop()


@needs_root
async def test_the_supervisor_takes_no_false_broker_for_its_own() -> None:
    port = free_port()
    with stranger(FALSE_BROKER, str(port)) as false:
        assert next_line(false) == "listens"
        assert not await nats_answers("127.0.0.1", port)


async def test_a_broker_that_was_killed_is_found_again(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    bus = await NatsBus.connect(server.url, name="test", local=True)
    try:
        server.stop(kill=True)
        await until(lambda: not bus.connected)
        server.start()
        await until(lambda: bus.connected)
        assert bus.stats.foreign_brokers == 0
    finally:
        await bus.close()
        server.stop()


async def test_where_the_kernel_tells_nothing_no_broker_is_trusted(
    tmp_path: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.host.tcp_table.PROC_NET", tmp_path)
    with pytest.raises(Unavailable, match=r"cannot be seen.*No such file"):
        await NatsBus.connect(nats_url, name="test", connect_wait_s=0.3, local=True)
    bus = await NatsBus.connect(nats_url, name="test")  # without `local` the port's owner is not checked
    await asyncio.wait_for(bus.close(), PATIENCE_S)
