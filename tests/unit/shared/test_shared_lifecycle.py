"""A service process from start to end: readiness, status, drain, signals, wrong settings."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import AsyncExitStack, suppress

import httpx
import pytest

from shared import subjects
from shared.codec import decode, encode
from shared.host.settled_memory import settle_memory
from shared.lifecycle import Service
from shared.messages import ServiceStatus, StatusQuery
from shared.settings import CommonSettings
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S

PROGRAM = """
import asyncio, sys
from contextlib import AsyncExitStack
from shared.lifecycle import Service, run_service
from shared.settings import CommonSettings, load

async def setup(service: Service, stack: AsyncExitStack) -> None:
    bus = await service.connect_bus(stack)
    await service.answer_operators(bus)
    stack.callback(lambda: print("closed", flush=True))
    async def drain() -> None:
        print("draining", flush=True)
        await asyncio.sleep(DRAIN)
        print("drained", flush=True)
    service.on_drain(drain)
    port = await service.serve_admin(stack)
    service.ready()
    print("port", port, flush=True)

run_service(load(CommonSettings), "demo", setup)
"""


def start(drain_s: float = 0.0, before: str = "", **env: str) -> subprocess.Popen[str]:
    program = before + textwrap.dedent(PROGRAM).replace("DRAIN", str(drain_s))
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_service_serves_its_admin_endpoints_drains_and_ends(nats_url: str, signum: signal.Signals) -> None:
    process = start(RYZ_NATS_URL=nats_url)
    assert process.stdout is not None
    port = int(process.stdout.readline().split()[1])
    base = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{base}/live").status_code == 200
    ready = httpx.get(f"{base}/ready")
    assert (ready.status_code, ready.json()["checks"]) == (200, {"broker": True})
    metrics = httpx.get(f"{base}/metrics").text
    assert 'ryz_bus_published_total{connection="main"}' in metrics
    process.send_signal(signum)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 0, err
    assert out.split() == ["draining", "drained", "closed"]


def test_admin_endpoints_have_limits_names_and_a_key(nats_url: str) -> None:
    process = start(RYZ_NATS_URL=nats_url, RYZ_METRICS_KEY="metrics-key-1")
    assert process.stdout is not None
    port = int(process.stdout.readline().split()[1])
    base = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{base}/live").status_code == 200
    assert httpx.get(f"{base}/ready").json() == {"status": "ready"}
    refused = httpx.get(f"{base}/metrics")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    key = {"Authorization": "Bearer metrics-key-1"}
    assert "ryz_bus_published_total" in httpx.get(f"{base}/metrics", headers=key).text
    assert httpx.get(f"{base}/ready", headers=key).json()["checks"] == {"broker": True}
    assert httpx.get(f"{base}/live", headers={"X-A": "a" * 20_000}).status_code == 431
    assert httpx.get(f"{base}/live", headers={"Host": "rebound.example"}).status_code == 421
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    held[0].settimeout(5)
    with suppress(ConnectionError):
        assert held[0].recv(1000) == b""  # closed in favour of a new connection
    assert httpx.get(f"{base}/live").status_code == 200
    for sock in held:
        sock.close()
    process.terminate()
    _, err = process.communicate(timeout=10)
    assert process.returncode == 0, err
    assert "metrics-key-1" not in err


def test_a_second_signal_cuts_the_drain_short(nats_url: str) -> None:
    process = start(30, RYZ_NATS_URL=nats_url, RYZ_DRAIN_TIMEOUT_S="30")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    assert process.stdout.readline() == "draining\n"
    process.terminate()
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, "closed\n")


def test_a_wrong_setting_ends_the_start_with_one_line() -> None:
    process = start(RYZ_NATS_URL="http://x", RYZ_ADMIN_PORT="many")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert len(err.splitlines()) == 1
    assert "RYZ_NATS_URL='http://x'" in err
    assert "RYZ_ADMIN_PORT='many'" in err


def test_no_broker_ends_the_start_with_one_sentence() -> None:
    process = start(RYZ_NATS_URL="nats://127.0.0.1:9", RYZ_NATS_CONNECT_WAIT_S="0.3", RYZ_LOG_LEVEL="error")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err.startswith("demo cannot start: no NATS server answered at nats://127.0.0.1:9 within 0.3 s")


def test_a_missing_exporter_ends_the_start_with_one_sentence(nats_url: str) -> None:
    missing = "import sys; sys.modules['urllib3'] = None\n"
    process = start(before=missing, RYZ_NATS_URL=nats_url, RYZ_TRACE_RATIO="1", RYZ_TRACE_EXPORT="otlp")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "demo cannot start: RYZ_TRACE_EXPORT=otlp needs the package" in err
    assert "Traceback" not in err


async def test_status_is_answered_and_follows_the_state(memory_bus: MemoryBus) -> None:
    service = Service(CommonSettings(), "demo")
    service.set_detail(lambda: {"queue": 3})
    await service.answer_operators(memory_bus)
    await memory_bus.publish(subjects.STATUS, b"\xc1 garbage and no reply subject")

    async def ask() -> ServiceStatus:
        answer = await memory_bus.request(subjects.STATUS, encode(StatusQuery()), timeout_s=1)
        return decode(answer.data, ServiceStatus)

    status = await ask()
    assert (status.service, status.state, status.detail["queue"]) == ("demo", "starting", 3)
    assert status.detail["tasks"] >= 1
    assert status.pid == os.getpid()
    service.ready()
    assert (await ask()).state == "ready"
    await service.drain()
    assert (await ask()).state == "draining"
    assert not service.is_ready


async def test_ready_needs_every_check(memory_bus: MemoryBus) -> None:
    service = Service(CommonSettings(), "demo")
    service.add_check("broker", lambda: memory_bus.connected)
    assert not service.is_ready
    service.ready()
    assert service.readiness() == {"status": "ready", "state": "ready", "checks": {"broker": True}}
    memory_bus.broker.stop()
    assert service.readiness() == {"status": "not ready", "state": "ready", "checks": {"broker": False}}


async def test_a_failed_background_task_ends_the_service() -> None:
    service = Service(CommonSettings(), "demo")

    async def break_down() -> None:
        raise RuntimeError("broken")

    service.spawn(break_down(), "breaker")
    await asyncio.wait_for(service.wait_stopping(), PATIENCE_S)
    assert service.exit_code == 1


async def test_background_tasks_end_with_the_service() -> None:
    service = Service(CommonSettings(), "demo")
    task = service.spawn(asyncio.Event().wait(), "waiter")  # type: ignore[arg-type]
    await service.finish()
    assert task.cancelled()
    assert service.exit_code == 0


async def test_the_admin_port_may_be_chosen_and_two_may_not_have_it() -> None:
    service = Service(CommonSettings(), "demo")
    async with AsyncExitStack() as stack:
        port = await service.serve_admin(stack)
        other = Service(CommonSettings(admin_port=port), "other")
        with pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{port}"):
            await other.serve_admin(stack)


def test_memory_that_was_settled_is_not_looked_at_again() -> None:
    before = gc.get_threshold()
    try:
        settle_memory()
        assert len(gc.get_objects()) < 1000
        settle_memory()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
