"""Services started as processes that a test may kill, and queries of a stack's readiness and metrics."""

import os
import signal
import time
from collections.abc import Sequence
from typing import Self

import httpx

from tests.kits.chaos.fleet import Metrics
from tests.kits.chaos.scale import scaled
from tests.kits.e2e.stack import Stack
from tests.kits.programs.launch import start_program
from tests.kits.servers import free_port
from tests.kits.waiting import PATIENCE_S, wait_for

START_S = PATIENCE_S
# full runs use the default; short runs may share an overloaded machine, where heartbeats are late
PATIENT = {"RYZ_ROUTER_HEARTBEAT_SLACK_S": scaled("0.6", "0.175")}


class ServiceProcess:
    """One service process; as a context manager it waits until the service is ready.

    Args:
        kind: Name of the service, such as `router`.
        nats_url: URL of the broker.
        prefix: Put before the command, as to run it in another namespace.
        settings: `RYZ_` variables.
    """

    def __init__(self, kind: str, nats_url: str, prefix: Sequence[str] = (), **settings: str) -> None:
        self.port = free_port()
        own = {"RYZ_NATS_URL": nats_url, "RYZ_ADMIN_PORT": str(self.port), "RYZ_LOG_LEVEL": "warning"}
        env = {name: value for name, value in os.environ.items() if not name.startswith("RYZ_")}
        self.kind = kind
        self.process = start_program(f"services.{kind}", env=env | own | settings, prefix=prefix)

    def await_ready(self) -> None:
        """Waits until the service is ready."""
        wait_for(self.is_ready, f"a {self.kind} is ready", START_S)

    def is_ready(self) -> bool:
        """Whether the service is ready; fails if it has ended."""
        assert self.process.poll() is None, f"the {self.kind} ended with {self.process.returncode}"
        return ready_code(f"http://127.0.0.1:{self.port}") == 200

    def end(self) -> int:
        """Stops the service gracefully and returns its exit code."""
        self.process.terminate()
        return self.process.wait(timeout=PATIENCE_S)

    def __enter__(self) -> Self:
        self.await_ready()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def ready_code(url: str) -> int:
    """The HTTP status of /ready; 0 without an answer."""
    try:
        return httpx.get(f"{url}/ready", timeout=2).status_code
    except httpx.TransportError:
        return 0


def metrics_of(stack: Stack) -> dict[str, Metrics]:
    """The metrics of each service by its name, those of workers by their group."""
    services = {
        one["detail"].get("group", one["service"]): Metrics(one["detail"]["admin_url"])
        for one in stack.status()["services"]
    }
    return services | {"gateway": Metrics(stack.state.url)}


def await_idle(stack: Stack, groups: int) -> None:
    """Waits until all groups are ready, no request runs or waits, and all blocks are free."""

    def idle() -> bool:
        rows = stack.status()["groups"]
        return len(rows) == groups and all(
            group["state"] == "ready"
            and (group["running"], group["waiting"]) == (0, 0)
            and group["free_blocks"] == group["total_blocks"]
            for group in rows
        )

    wait_for(idle, f"{groups} groups are ready and idle", PATIENCE_S)


def kill(stack: Stack, name: str) -> int:
    """Kills a service of the stack without waiting for its restart; returns the killed process id."""
    pid = stack.pid_of(name)
    os.kill(pid, signal.SIGKILL)
    return pid


def await_next(stack: Stack, name: str, before: int) -> float:
    """Waits until a killed service is restarted and ready; returns the seconds waited."""
    began = time.monotonic()

    def back() -> bool:
        service = next(one for one in stack.state.services if one.name == name)
        return service.pid != before and service.ready

    wait_for(back, f"{name} is back", START_S)
    return time.monotonic() - began
