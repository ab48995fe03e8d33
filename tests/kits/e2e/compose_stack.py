"""A Compose project of the stack, for tests in containers."""

import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from cli.stack.host.ports import pick_ports
from tests.kits.e2e.turns import post_turn

ROOT = Path(__file__).parents[3]
SERVICES = ("nats", "redis", "redis-kv", "kvstate", "router", "worker-1", "worker-2", "gateway")
OURS = SERVICES[3:]  # `init` and `plan` have ended by then, and `ryz` runs when it is called
NUMBERED = re.compile(r"(\w+)-(\d+)")  # a container of a service with several
BUILD_TIMEOUT_S = 1800.0
UP_TIMEOUT_S = 600.0


def run(*command: str, timeout_s: float = 60.0, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, (
        f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout.strip()


def compose_command() -> list[str]:
    """The Compose command of this machine; fails if there is none."""
    if not shutil.which("docker"):
        pytest.fail("There is no `docker` on PATH: this test needs a Docker engine with Compose.")
    engine = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=30, check=False)
    if engine.returncode:
        pytest.fail(f"No Docker engine answers; start one (`dockerd`). `docker info` says: {engine.stderr}")
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False)
    if plugin.returncode == 0:
        return ["docker", "compose"]
    if found := shutil.which("docker-compose"):
        return [found]
    return pytest.fail("The Docker engine has no Compose: neither `docker compose` nor `docker-compose`.")


@dataclass(slots=True)
class ComposeStack:
    """One Compose project with a unique name and port."""

    command: list[str]
    port: int = field(default_factory=lambda: pick_ports(1)[0])
    project: str = field(default_factory=lambda: f"ryz-test-{secrets.token_hex(4)}")
    files: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def compose(self, *arguments: str, timeout_s: float = 60.0) -> str:
        own = {"RYZ_HTTP_PORT": str(self.port), "RYZ_MODEL": "demo"}
        env = {"RYZ_BUILD_NETWORK": "host", **os.environ, **own, **self.env}
        return run(*self.command, *self.files, "-p", self.project, *arguments, timeout_s=timeout_s, env=env)

    def container(self, service: str) -> str:
        """The service's container, or the first of several; `worker-2` is the second; empty: it has none."""
        labels = {"project": self.project, "service": service, "oneoff": "False"}
        if match := NUMBERED.fullmatch(service):
            labels |= {"service": match[1], "container-number": match[2]}
        filters = [f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items()]
        return next(iter(run("docker", "ps", "-aq", "--no-trunc", *filters).split()), "")

    def password(self, name: str) -> str:
        """One that `init` has made."""
        return self.compose("run", "--rm", "-T", "init", "show", name)

    def inside(self, service: str, *command: str) -> str:
        return run("docker", "exec", self.container(service), *command)

    def as_service(self, service: str, *command: str) -> str:
        """Runs a command with the service's passwords."""
        return self.inside(
            service, "sh", "-c", f'. /run/ryzanstein/{service}.env && exec "$@"', "-", *command
        )

    def state(self, service: str, template: str) -> str:
        return run("docker", "inspect", "-f", template, self.container(service))

    def wait(self, service: str, template: str, expected: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while (value := self.state(service, template)) != expected:
            assert time.monotonic() < deadline, f"{service}: {template} is {value}, not {expected}"
            time.sleep(0.25)

    def chat(self, content: str, session: str = "", **more: Any) -> httpx.Response:
        with httpx.Client(base_url=self.url, timeout=60) as http:
            return post_turn(http, content, session, **more)


@contextmanager
def running_stack(
    *, files: tuple[str, ...] = (), env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[ComposeStack]:
    """Builds the images and starts all services; removes them at the end."""
    running = ComposeStack(compose_command(), files=files, env=dict(env))
    try:
        running.compose("--profile", "tools", "build", timeout_s=BUILD_TIMEOUT_S)
        running.compose("up", "-d", timeout_s=UP_TIMEOUT_S)
        yield running
    finally:
        with suppress(AssertionError):
            print(running.compose("logs", "--tail", "15"))  # shown when a test fails
        running.compose("down", "--volumes", "--remove-orphans", timeout_s=120)


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])
