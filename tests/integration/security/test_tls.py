"""TLS to a real broker, to Redis behind a TLS proxy, and to the gateway; each test has its own files."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from services.kvstate.redis.link import RedisLink
from services.kvstate.redis.store_errors import StoreAway
from services.kvstate.settings import KVStateSettings
from services.worker.engine.kv_transfer.kv_link import StoreLink, StoreUnreachable
from shared.bus.nats import NatsBus
from shared.errors import InvalidRequest, Unavailable
from shared.healthcheck import problem
from shared.settings import BusSettings
from shared.tls import check_server_files, client_context, with_files
from tests.kits.gateway.process import gateway_process, ready
from tests.kits.proxies.tcp import TcpProxy
from tests.kits.servers import GuardedNats, free_port
from tests.kits.tls import Authority
from tests.kits.waiting import PATIENCE_S

REFUSED_WAIT_S = 1.5  # how long a client tries that must be refused


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs")


def bus_settings(url: str, **more: str) -> BusSettings:
    return BusSettings.model_validate({"nats_url": url, "nats_connect_wait_s": 20, **more})


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_a_broker_with_tls(authority: Authority, tmp_path: Path, scheme: str) -> None:
    own = authority.issue()
    monitor = f"127.0.0.1:{free_port()}"
    tls = f'tls {{ cert_file: "{own.cert}", key_file: "{own.key}" }}'
    broker = GuardedNats(tmp_path, f'http: "{monitor}"\n{tls}')
    broker.start()
    try:
        settings = bus_settings(broker.url("router", scheme), nats_ca=authority.ca)
        bus = await NatsBus.from_settings(settings, name="test")
        await bus.flush()
        async with httpx.AsyncClient() as http:
            connections = (await http.get(f"http://{monitor}/connz")).json()["connections"]
        assert [(one["name"], one["tls_version"]) for one in connections] == [("test", "1.3")]
        broker.stop()
        broker.start()
        for _ in range(2):  # each waits for the new connection; the first may still use the old one
            with suppress(Unavailable):
                await bus.flush()
        assert bus.connected
        await bus.close()
    finally:
        broker.stop()


async def test_a_broker_with_a_certificate_of_another_authority(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    own = stranger.issue()
    broker = GuardedNats(tmp_path, f'tls {{ cert_file: "{own.cert}", key_file: "{own.key}" }}')
    broker.start()
    try:
        for more in ({"nats_ca": authority.ca}, {}):  # the system's authorities do not know it either
            settings = bus_settings(broker.url("router", "tls"), **more)
            with pytest.raises(Unavailable, match="certificate verify failed"):
                await NatsBus.from_settings(settings, name="test", connect_wait_s=REFUSED_WAIT_S)
        # the right authority, but another host
        settings = bus_settings(broker.url("router", "tls", host="localhost"), nats_ca=stranger.ca)
        with pytest.raises(Unavailable, match="mismatch"):
            await NatsBus.from_settings(settings, name="test", connect_wait_s=REFUSED_WAIT_S)
    finally:
        broker.stop()


async def test_a_broker_that_asks_for_certificates(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    own, ours, theirs = authority.issue(), authority.issue("router.test"), stranger.issue("router.test")
    files = f'cert_file: "{own.cert}", key_file: "{own.key}", ca_file: "{authority.ca}"'
    broker = GuardedNats(tmp_path, f"tls {{ {files}, verify: true }}")
    broker.start()
    try:
        settings = bus_settings(
            broker.url("router"), nats_ca=authority.ca, nats_cert=ours.cert, nats_key=ours.key
        )
        bus = await NatsBus.from_settings(settings, name="test")
        await bus.close()
        for more in ({}, {"nats_cert": theirs.cert, "nats_key": theirs.key}):
            settings = bus_settings(broker.url("router"), nats_ca=authority.ca, **more)
            with pytest.raises(Unavailable):
                await NatsBus.from_settings(settings, name="test", connect_wait_s=REFUSED_WAIT_S)
    finally:
        broker.stop()


async def test_a_connection_that_hangs_can_be_closed(authority: Authority, tmp_path: Path) -> None:
    """A stalled peer does not answer the TLS shutdown; asyncio would wait 30 s for it."""
    own = authority.issue()
    broker = GuardedNats(tmp_path, f'tls {{ cert_file: "{own.cert}", key_file: "{own.key}" }}')
    broker.start()
    try:
        async with TcpProxy(broker.port) as proxy:
            url = broker.url("router").replace(str(broker.port), str(proxy.port))
            bus = await NatsBus.from_settings(bus_settings(url, nats_ca=authority.ca), name="test")
            proxy.stall()
            async with asyncio.timeout(25):  # five for the last flush, one for the TLS shutdown
                await bus.close()
    finally:
        broker.stop()


@pytest.mark.parametrize(("scheme", "with_ca"), [("tls", False), ("tls", True), ("nats", True)])
async def test_no_password_goes_to_a_broker_without_tls(
    authority: Authority, scheme: str, with_ca: bool
) -> None:
    """An attacker between a service and the broker could claim that the broker has no TLS."""
    heard = bytearray()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","max_payload":1048576,"auth_required":true}\r\n')
        heard.extend(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"{scheme}://router:hush@127.0.0.1:{port}"
    settings = bus_settings(url, **({"nats_ca": authority.ca} if with_ca else {}))
    with pytest.raises(Unavailable, match="no TLS") as caught:
        await NatsBus.from_settings(settings, name="test", connect_wait_s=REFUSED_WAIT_S)
    assert "hush" not in caught.value.message
    assert not heard
    server.close()
    await server.wait_closed()


@pytest.fixture
async def tls_redis(redis_url: str, authority: Authority) -> AsyncIterator[str]:
    """The URL of a Redis behind TLS."""
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    async with TcpProxy(port, tls=authority.server_context()) as proxy:
        yield f"rediss://127.0.0.1:{proxy.port}/0"


async def test_the_kv_state_service_and_ranks_speak_tls_with_redis(
    tls_redis: str, authority: Authority
) -> None:
    settings = KVStateSettings.model_validate({"redis_url": tls_redis, "redis_ca": authority.ca})
    address = settings.redis_address(settings.redis_url)
    store = RedisLink(address, timeout_s=PATIENCE_S, max_connections=2, name="store", reason="test")
    assert await store.pipeline([("SET", "tls-test", b"x" * 100_000)]) == [True]
    await store.close()

    def read() -> bytes:
        link = StoreLink(address, 10)
        link.send([("GET", "tls-test"), ("DEL", "tls-test")])
        value = link.receive()
        link.receive()
        link.close()
        return bytes(value)

    assert await asyncio.to_thread(read) == b"x" * 100_000


async def test_a_redis_without_a_trusted_certificate(tls_redis: str, stranger: Authority) -> None:
    address = with_files(tls_redis, stranger.ca, "", "")
    store = RedisLink(address, timeout_s=PATIENCE_S, max_connections=2, name="store", reason="test")
    with pytest.raises(StoreAway):
        await store.pipeline([("PING",)])
    await store.close()
    link = StoreLink(address, 10)
    with pytest.raises(StoreUnreachable, match="certificate verify failed"):
        await asyncio.to_thread(link.send, [("PING",)])
    link.close()


async def test_the_gateway_serves_https(nats_url: str, authority: Authority) -> None:
    own, port = authority.issue(), free_port()
    files = {"http_cert": own.cert, "http_key": own.key}
    async with (
        gateway_process(nats_url=nats_url, http_port=str(port), **files),
        httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{port}", verify=ssl.create_default_context(cafile=authority.ca)
        ) as http,
    ):
        await ready(http)
        async with httpx.AsyncClient(trust_env=False) as stranger:
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                await stranger.get(f"https://127.0.0.1:{port}/ready")
            with pytest.raises(httpx.TransportError):
                await stranger.get(f"http://127.0.0.1:{port}/ready")
        # an answer came through TLS: the gateway says that no router is there
        assert '"reason":"no_router"' in await asyncio.to_thread(problem, port, tls=True)
        assert "no_router" not in await asyncio.to_thread(problem, port)
        asked = await asyncio.create_subprocess_exec(
            sys.executable,
            "-IS",
            "shared/healthcheck.py",
            str(port),
            env=os.environ | {"RYZ_HTTP_CERT": own.cert},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asked.communicate()
        assert b'"reason":"no_router"' in said


async def test_files_that_are_of_no_use_end_the_start(nats_url: str, authority: Authority) -> None:
    files = {"http_cert": authority.issue().cert, "http_key": "/nowhere/x.key"}
    async with gateway_process(nats_url=nats_url, http_port="0", **files) as process:
        async with asyncio.timeout(PATIENCE_S):
            _, said = await process.communicate()
    assert process.returncode == 2
    assert "RYZ_HTTP_KEY: there is no file /nowhere/x.key" in said.decode()


def test_files_are_checked(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    ours, theirs = authority.issue(), stranger.issue()
    client_context("NATS", authority.ca, ours.cert, ours.key)
    check_server_files("HTTP", "", "")
    text = tmp_path / "text"
    text.write_text("no certificate")
    wrong = [
        (("/nowhere", "", ""), "RYZ_NATS_CA: there is no file /nowhere"),
        ((str(text), "", ""), "RYZ_NATS_CA=.*cannot be used"),
        (("", str(text), ours.key), "RYZ_NATS_CERT=.*cannot be used"),
        (("", ours.cert, theirs.key), r"RYZ_NATS_CERT=.*\(with RYZ_NATS_KEY\) cannot be used"),
        (("", ours.cert, ""), "RYZ_NATS_CERT=.*cannot be used"),
        (("", "", ours.key), "RYZ_NATS_KEY is set without RYZ_NATS_CERT"),
    ]
    for given, message in wrong:
        with pytest.raises(InvalidRequest, match=message):
            client_context("NATS", *given)
    with pytest.raises(InvalidRequest, match="rediss://"):
        with_files("redis://h:1/0", authority.ca, "", "")
    assert with_files("redis://h:1/0", "", "", "") == "redis://h:1/0"
    assert with_files("rediss://h/0?x=1", authority.ca, "", "").startswith("rediss://h/0?x=1&ssl_ca_certs=")
