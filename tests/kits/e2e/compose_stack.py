"""A Compose project of the stack, for tests in containers."""

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.stack.host.ports import pick_ports
from deploy.configure import make_secrets
from tests.kits.e2e.turns import post_turn

ROOT = Path(__file__).parents[3]
SERVICES = ("nats", "redis", "redis-kv", "kvstate", "router", "worker-g0", "worker-g1", "gateway")
OURS = SERVICES[3:]  # `check-env` has ended by then, and `ryz` runs when it is called
BUILD_TIMEOUT_S = 1800.0
UP_TIMEOUT_S = 300.0


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
    passwords: dict[str, str] = field(
        default_factory=lambda: make_secrets((ROOT / "compose.yaml").read_text(), "")
    )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def compose(self, *arguments: str, timeout_s: float = 60.0) -> str:
        own = {"RYZ_HTTP_PORT": str(self.port), "RYZ_MODEL": "/srv/models/demo"}
        env = {"RYZ_BUILD_NETWORK": "host", **os.environ, **self.passwords, **own}
        return run(*self.command, *self.files, "-p", self.project, *arguments, timeout_s=timeout_s, env=env)

    def container(self, service: str) -> str:
        """The service's container, or the first of several; empty: it has none."""
        return next(iter(self.compose("ps", "-q", service).split()), "")

    def inside(self, service: str, *command: str) -> str:
        return run("docker", "exec", self.container(service), *command)

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
def running_stack() -> Iterator[ComposeStack]:
    """Builds the images and starts all services; removes them at the end."""
    running = ComposeStack(compose_command())
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
