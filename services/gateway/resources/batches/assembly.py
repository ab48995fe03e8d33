"""Builds files and batches of a gateway out of its settings, with their metrics."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.gateway.resources.batches.calls import BatchCalls
from services.gateway.resources.batches.group_loads import GroupLoads
from services.gateway.resources.batches.log import BatchLog
from services.gateway.resources.batches.owner import BatchOwners
from services.gateway.resources.batches.retention import Retention
from services.gateway.resources.batches.runner import BatchRunner, LineCall
from services.gateway.resources.batches.service import BatchService
from services.gateway.resources.batches.streams import BatchParts, BatchRules, BatchStreams
from services.gateway.resources.files.directory_store import DirectoryFiles
from services.gateway.resources.files.object_store import ObjectFiles
from services.gateway.resources.files.store import OUTPUT, FileStore
from services.gateway.resources.files.tenants import FileLimits, TenantFiles
from services.gateway.settings import GatewaySettings
from shared.accounts.register import AccountRegister
from shared.bus import Bus
from shared.bus.jetstream.jetstream import JetStream
from shared.lifecycle import Service


class BatchMetrics:
    """Counts requests of batches.

    Args:
        registry: Of the service.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self._lines = Counter(
            "ryz_gateway_batch_lines",
            "Requests of batches that this gateway has run to their ends: completed or failed.",
            ["outcome"],
            registry=registry,
        )
        self._waiting = gauge(
            "ryz_gateway_batch_lines_waiting",
            "Requests without a result in all batches, as every gateway tells them.",
        )
        self._running = gauge("ryz_gateway_batch_lines_running", "Requests of batches that run here.")
        self._open = gauge(
            "ryz_gateway_batches_open", "Batches that have not ended, as every gateway tells them."
        )

    def count_line(self, ok: bool) -> None:
        """A request has its result."""
        self._lines.labels("completed" if ok else "failed").inc()

    def show(
        self, waiting: Callable[[], float], running: Callable[[], float], open_: Callable[[], float]
    ) -> None:
        """Sets where the gauges read."""
        self._waiting.set_function(waiting)
        self._running.set_function(running)
        self._open.set_function(open_)


def batch_service(settings: GatewaySettings, jetstream: JetStream, register: AccountRegister) -> BatchService:
    """Builds files and batches; nothing is asked of broker or disk yet.

    Args:
        settings: Of the gateway.
        jetstream: The broker's.
        register: Knows the limits of tenants, and how long their files and batches are kept.
    """

    def file_days(tenant: str, purpose: str) -> int:
        return register.batch_days(tenant) if purpose == OUTPUT else register.file_days(tenant)

    store: FileStore = ObjectFiles(jetstream)
    if settings.files_store == "directory":
        store = DirectoryFiles(Path(settings.files_dir).absolute())
    limits = FileLimits(
        settings.file_max_bytes, settings.files_max_per_tenant, settings.files_bytes_per_tenant
    )
    parts = BatchParts(
        BatchLog(jetstream, settings.batch_ttl_s, register.batch_days),
        BatchStreams(jetstream, ttl_s=settings.batch_ttl_s, ack_wait_s=settings.batch_lease_s),
        TenantFiles(store, limits, file_days),
        BatchRules(
            owner=settings.instance_id,
            lease_s=settings.batch_lease_s,
            max_lines=settings.constants.batch_max_lines,
            line_bytes=settings.constants.batch_line_max_bytes,
            max_open=settings.constants.batch_max_open,
            max_waiting=settings.constants.batch_max_waiting,
            max_running=settings.batch_max_running,
            share=settings.batch_share,
            limits_of=register.limits,
        ),
    )
    return BatchService(parts)


async def run_batches(
    batches: BatchService,
    bus: Bus,
    call: LineCall,
    service: Service,
    stack: AsyncExitStack,
    *,
    register: AccountRegister,
) -> None:
    """Runs batches and answers calls on the bus, until the service drains.

    Args:
        batches: Files and batches.
        bus: The broker.
        call: Runs one request.
        service: Its life.
        stack: Closes what is opened here.
        register: Knows how long files and batches of tenants are kept.
    """
    parts, metrics = batches.parts, BatchMetrics(service.registry)
    runner = BatchRunner(parts, GroupLoads(bus), call, metrics.count_line, lambda: service.is_ready)
    records = parts.log.records
    metrics.show(
        lambda: sum(record.waiting for record in records.values()),
        lambda: runner.running,
        lambda: sum(not record.ended for record in records.values()),
    )
    owners, calls = BatchOwners(bus, parts, runner), BatchCalls(bus, batches, call.accounts)
    for stop in (owners.stop, calls.stop):
        stack.push_async_callback(stop)
        service.on_drain(stop)
    owners.start()
    retention = asyncio.create_task(Retention(batches, register).run_forever())
    stack.callback(retention.cancel)
    await calls.start()
