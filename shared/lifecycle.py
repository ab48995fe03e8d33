"""The life of a service process: starting, ready, draining, stopped.

`run_service` sets up logging, calls the `setup` of the service, waits for a signal, drains within a bound,
and closes what was opened, in reverse order. A service also answers status queries on the bus.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any, TypeVar

import structlog
import uvloop
from prometheus_client import ProcessCollector

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import encode
from shared.compiled_modules import used_build
from shared.errors import InvalidRequest, RyzError
from shared.host.settled_memory import settle_memory
from shared.messages import ServiceStatus, State
from shared.settings import CommonSettings
from shared.telemetry.discovery import CountingBus, DiscoveredService, answer_discovery
from shared.telemetry.explanations import answer_explain
from shared.telemetry.logs.limits import LogLimiter
from shared.telemetry.logs.metrics import LogCollector
from shared.telemetry.logs.setup import configure_logging
from shared.telemetry.loop_lag import lag_histogram, watch_loop_lag
from shared.telemetry.memory_trace import MemoryTrace
from shared.telemetry.metrics import BusCollector
from shared.telemetry.service_registry import ServiceRegistry
from shared.telemetry.spans.export import span_export
from shared.telemetry.spans.facts import SpanSink
from shared.telemetry.timelines import Timelines
from shared.web.admin_endpoints import admin_app, admin_gate
from shared.web.bearer_key import BearerKey
from shared.web.host_rules import host_rule, is_loopback
from shared.web.http_server import http_server

S = TypeVar("S", bound=CommonSettings)
log = structlog.get_logger(__name__)


class Service:
    """One running service: its state, checks and end, its metrics, its spans, its requests' timelines."""

    def __init__(self, settings: CommonSettings, name: str) -> None:
        self.settings = settings
        self.name = name
        self.state: State = "starting"
        self.registry = ServiceRegistry()
        ProcessCollector(registry=self.registry)
        self.spans: SpanSink | None = None  # None: no request is recorded
        self.timelines = Timelines(settings.explain_requests)
        self.exit_code = 0
        self._started = time.monotonic()
        self._stopping = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._drains: list[Callable[[], Awaitable[None]]] = []
        self._checks: dict[str, Callable[[], bool]] = {}
        self._detail: Callable[[], dict[str, Any]] = dict
        self._tasks: set[asyncio.Task[Any]] = set()
        self._admin_url = ""  # empty in gateways, whose API serves these pages

    def ready(self) -> None:
        """Marks the service as ready for work."""
        if self.state == "starting":
            self.state = "ready"
            after_s = round(time.monotonic() - self._started, 3)
            log.info("ready", after_s=after_s, compiled=used_build() is not None)

    @property
    def is_ready(self) -> bool:
        """True if the service takes work now."""
        return self.state == "ready" and all(check() for check in self._checks.values())

    def add_check(self, name: str, check: Callable[[], bool]) -> None:
        """Adds a condition for being ready."""
        self._checks[name] = check

    def on_drain(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Registers a call for the end of the service, before anything is closed; calls run in this order."""
        self._drains.append(drain)

    def set_detail(self, detail: Callable[[], dict[str, Any]]) -> None:
        """Sets the source of the `detail` in the status; plain values only."""
        self._detail = detail

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """Runs a task for the life of the service; if it fails, the service ends with an error."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)
        return task

    def stop(self, exit_code: int = 0) -> None:
        """Starts the drain and then stops; a second call ends the drain."""
        if self._stopping.is_set():
            self._stop_now.set()
        self.exit_code = self.exit_code or exit_code
        self._stopping.set()

    def status(self) -> ServiceStatus:
        """Returns the answer to a status query."""
        return ServiceStatus(
            service=self.name,
            instance_id=self.settings.instance_id,
            state=self.state,
            version=version("ryzanstein"),
            uptime_s=round(time.monotonic() - self._started, 3),
            pid=os.getpid(),
            detail={
                "tasks": len(asyncio.all_tasks()),
                "admin_url": self._admin_url,
                **self._detail(),
            },
        )

    async def connect_bus(self, stack: AsyncExitStack, name: str = "", *, needed: bool = True) -> NatsBus:
        """Connects to the broker.

        Args:
            stack: Closes the connection at its end.
            name: Names a connection beside the main one.
            needed: Whether the service is ready only while it is connected.
        """
        bus = await NatsBus.from_settings(
            self.settings, name=f"{self.name}/{self.settings.instance_id}{name and f'/{name}'}"
        )
        stack.push_async_callback(bus.close)
        if needed:
            self.add_check(f"broker{name and f' {name}'}", lambda: bus.connected)
        BusCollector(bus.stats, name or "main", lambda: bus.num_pending).register(self.registry)
        return bus

    async def answer_operators(self, bus: CountingBus, *others: CountingBus) -> None:
        """Answers `StatusQuery`, `ExplainQuery` and `$SRV` on this bus until it is closed.

        Args:
            others: Further connections, whose subscriptions are endpoints as well.
        """

        async def answer(message: Message) -> None:
            if message.reply:
                await bus.publish(message.reply, encode(self.status()))

        await bus.subscribe(subjects.STATUS, answer, max_pending=1024)
        await answer_explain(bus, self.name, self.settings.instance_id, self.timelines)
        identity = f"ryz-{self.name}", self.settings.instance_id, version("ryzanstein")
        await answer_discovery((bus, *others), DiscoveredService(*identity, self._facts))

    def _facts(self) -> dict[str, str]:
        detail = self._detail()
        named = {key: detail[key] for key in ("group", "model") if isinstance(detail.get(key), str)}
        return {"state": self.state, **named}

    async def serve_admin(self, stack: AsyncExitStack) -> int:
        """Serves /live, /ready and /metrics until the stack closes; returns the port."""
        host = self.settings.admin_host
        # host names are checked where browsers of this machine's users reach the port
        hosts = host_rule("" if is_loopback(host) else "*", host, has_keys=False)
        key = BearerKey(self.settings.metrics_key)
        app = admin_app(lambda: self.is_ready, self.readiness, self.registry, key, hosts)
        gate = admin_gate()
        port = await stack.enter_async_context(
            http_server(app, host, self.settings.admin_port, gate, held=self.settings.ports_held)
        )
        self._admin_url = f"http://{host}:{port}"
        log.info("admin endpoints", host=host, port=port)
        return port

    def readiness(self) -> dict[str, Any]:
        """Returns the body of /ready."""
        return {
            "status": "ready" if self.is_ready else "not ready",
            "state": self.state,
            "checks": {name: check() for name, check in self._checks.items()},
        }

    async def wait_stopping(self) -> None:
        """Waits until the service is to stop."""
        await self._stopping.wait()

    async def drain(self) -> None:
        """Lets running work end, within `drain_timeout_s` or until `stop` is called again."""
        self.state = "draining"
        if not self._drains:
            return
        log.info("draining", at_most_s=self.settings.drain_timeout_s)
        drains = asyncio.create_task(self._run_drains())
        now = asyncio.create_task(self._stop_now.wait())
        done, _ = await asyncio.wait(
            {drains, now}, timeout=self.settings.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if drains not in done:
            log.warning("drain cut short")
        for task in (drains, now):
            task.cancel()
        await asyncio.gather(drains, now, return_exceptions=True)

    async def finish(self) -> None:
        """Cancels the tasks that `spawn` started."""
        self.state = "stopped"
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_drains(self) -> None:
        for drain in self._drains:
            try:
                await drain()
            except Exception:
                log.exception("drain failed")

    def _spawned_ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("background task failed, the service ends", task=task.get_name(), exc_info=error)
            self.stop(exit_code=1)


Setup = Callable[[Service, AsyncExitStack], Coroutine[Any, Any, None]]


def run_service(
    settings: CommonSettings, name: str, setup: Setup, *, log_names: Mapping[str, str] | None = None
) -> None:
    """Runs a service until SIGTERM or SIGINT, and ends the process with its exit code.

    Args:
        settings: The settings of the service.
        name: Its name in logs and in the status.
        setup: Builds the service, pushes what must be closed on the stack, and calls `service.ready()`. A
            `RyzError` in it ends the start with one line.
        log_names: Further fields of each log line.
    """
    limiter = configure_logging(settings, name, log_names)
    raise SystemExit(uvloop.run(_run(settings, name, setup, limiter)))


async def _start(service: Service, setup: Setup, stack: AsyncExitStack) -> None:
    export = span_export(service.settings, service.name, service.registry)
    if export is not None:
        stack.callback(export.close)
        service.spans = export
    await setup(service, stack)


async def _run(settings: CommonSettings, name: str, setup: Setup, limiter: LogLimiter) -> int:
    service = Service(settings, name)
    LogCollector(limiter).register(service.registry)
    service.spawn(limiter.report_regularly(), "report log lines left out")
    service.spawn(watch_loop_lag(lag_histogram(service.registry)), "measure how late the event loop is")
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, service.stop)
    loop.add_signal_handler(signal.SIGUSR1, MemoryTrace(settings.memory_trace).log_report)
    async with AsyncExitStack() as stack:
        starting = asyncio.create_task(_start(service, setup, stack))
        stopping = asyncio.create_task(service.wait_stopping())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
        try:
            await starting
            settle_memory()
            await stopping
            await service.drain()
        except asyncio.CancelledError:
            log.info("stopped while starting")
        except RyzError as error:
            print(f"{name} cannot start: {error.message}", file=sys.stderr)
            # 2 stands for wrong input (a model directory, a setting), after which supervisors do not start it
            # again
            service.exit_code = 2 if isinstance(error, InvalidRequest) else 1
        finally:
            stopping.cancel()
            await service.finish()
    log.info("stopped", exit_code=service.exit_code)
    return service.exit_code
