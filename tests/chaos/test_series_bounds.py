"""Tenants, models, paths and headers without end: series, the time of `/metrics` and memory stay as they are.

A real gateway, router and leader (null engine) on a real broker, in this process. The short form sends some
hundred of each kind, the long one (`RYZ_CHAOS=full`) ten thousand.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.gateway.__main__ import start
from services.gateway.admission.auth import parse_keys
from services.gateway.settings import GatewaySettings
from services.worker.null.model import null_model
from shared.bus.nats import NatsBus
from shared.client import ClientSettings
from shared.lifecycle import Service
from shared.telemetry.service_levels import MAX_SERIES
from shared.telemetry.service_registry import ServiceRegistry
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.router.live import router
from tests.kits.waiting import until
from tests.kits.worker.leader import Kit

pytestmark = pytest.mark.timeout(scaled(300, 1800))
MODEL = "bounds"
FIRST = 60  # of each kind: all series that there can be are there afterwards
COUNT = scaled(125, 10_000)
SIDE_BY_SIDE = 16
# labels whose values are lists in the code
CLOSED = {"code", "error_type", "event", "finished_reason", "outcome", "reason", "status", "subject"}
SCRAPES = scaled(40, 400)
SCRAPE_S = 0.020
MORE_BYTES = 24_000_000  # of resident memory: arenas of allocators, rings that fill


class Series(NamedTuple):
    """A series: its name and its labels."""

    name: str
    labels: frozenset[tuple[str, str]]


@dataclass
class BoundedFleet:
    """A fleet in this process.

    Attributes:
        http: A client of its gateway.
        registries: Of its services, by name.
    """

    http: httpx.AsyncClient
    registries: dict[str, ServiceRegistry]

    def series(self) -> set[Series]:
        """Return all series that a scrape shows, of all services."""
        texts = (registry.text().decode() for registry in self.registries.values())
        families = (family for text in texts for family in text_string_to_metric_families(text))
        return {
            Series(sample.name, frozenset(sample.labels.items()))
            for family in families
            for sample in family.samples
        }

    async def send(self, numbers: Iterable[int]) -> None:
        """Send requests of all kinds, each with a tenant, a model, a path and headers of its own."""
        left = iter(numbers)

        async def work() -> None:
            for number in left:
                await self._send_kinds(number)

        await asyncio.gather(*(work() for _ in range(SIDE_BY_SIDE)))

    async def _send_kinds(self, number: int) -> None:
        headers = {
            "Authorization": f"Bearer {key_of(number)}",
            f"X-{uuid4().hex}": uuid4().hex,
            "User-Agent": uuid4().hex,
            "X-Session-Id": uuid4().hex,
            "X-Request-Id": uuid4().hex,
        }
        body = {"model": MODEL, "prompt": "Hello", "max_tokens": 2, "stream": True, uuid4().hex: 1}
        answered = await self.http.post("/v1/completions", json=body, headers=headers)
        assert answered.status_code == 200, answered.text
        assert "[DONE]" in answered.text
        unknown = {**body, "model": f"model-{uuid4().hex}"}
        assert (await self.http.post("/v1/completions", json=unknown, headers=headers)).status_code == 404
        assert (await self.http.get(f"/v1/{uuid4().hex}", headers=headers)).status_code == 404


def key_of(number: int) -> str:
    return f"key-of-tenant-{number:08}"


def slowest_s(registry: ServiceRegistry) -> float:
    """Return the 99th percentile of the processor time that a scrape's text takes."""
    times = []
    for _ in range(SCRAPES):
        began = time.thread_time()
        registry.text()
        times.append(time.thread_time() - began)
    return sorted(times)[int(0.99 * (len(times) - 1))]


@pytest.fixture
async def fleet(nats_url: str) -> AsyncIterator[BoundedFleet]:
    """A gateway with a key for each tenant, a router and a leader."""
    keys = ",".join(f"{key_of(number)}:tenant-{number}" for number in range(FIRST + COUNT))
    settings = GatewaySettings.model_validate(
        {"http_port": 0, "instance_id": "bounds", "explain_requests": 50, "max_concurrent": 1000}
    )
    async with AsyncExitStack() as stack:
        leader_bus = await NatsBus.connect(nats_url, name="leader")
        stack.push_async_callback(leader_bus.close)
        kit = Kit(leader_bus, group="bounds-g0", model=null_model(MODEL, 2048), retention_s=1.0)
        await stack.enter_async_context(kit)
        routing = await stack.enter_async_context(router(nats_url, explain_requests=50))
        bus = await NatsBus.connect(nats_url, name="gateway")
        stack.push_async_callback(bus.close)
        service = Service(settings, "gateway")
        stack.push_async_callback(service.finish)
        servers = await start(
            service, stack, settings, parse_keys(keys), bus, client_settings=ClientSettings()
        )
        service.ready()
        limits = httpx.Limits(max_connections=SIDE_BY_SIDE)
        http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{servers.http_port}", timeout=60, limits=limits, trust_env=False
        )
        await stack.enter_async_context(http)
        registries = {"gateway": service.registry, "router": routing.registry, "worker": kit.registry}
        labels = {"state": "ready"}
        await until(lambda: bool(routing.registry.get_sample_value("ryz_router_groups", labels)))
        yield BoundedFleet(http, registries)


async def test_whatever_clients_send_the_series_stay(fleet: BoundedFleet) -> None:
    await fleet.send(range(FIRST))
    before, process = fleet.series(), psutil.Process()
    half = FIRST + COUNT // 2
    await fleet.send(range(FIRST, half))
    gc.collect()
    resident = process.memory_info().rss
    await fleet.send(range(half, FIRST + COUNT))
    gc.collect()
    grown = process.memory_info().rss - resident
    after = fleet.series()
    rare = {series for series in after - before if {label for label, _ in series.labels} & CLOSED}
    assert after - before == rare  # a busy machine may refuse a request now and then
    values = {pair for series in before for pair in series.labels if pair[0] not in CLOSED}
    assert {pair for series in rare for pair in series.labels if pair[0] not in CLOSED} <= values
    assert len(rare) < 0.1 * len(before)
    times = {name: slowest_s(registry) for name, registry in fleet.registries.items()}
    figures = {"requests": 3 * (FIRST + COUNT), "series": len(before), "rare": len(rare)}
    record("series bounds", **figures, scrape_p99_s=times, grown=grown)
    assert max(times.values()) < SCRAPE_S
    assert grown < MORE_BYTES
    assert not any(value.startswith("model-") for _, labels in after for _, value in labels)
    assert sum(series.name == "ryz_slo_request_seconds_count" for series in after) <= MAX_SERIES + 3
