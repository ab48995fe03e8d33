"""The stack in containers: builds the images, starts all services, uses them, kills some, and stops all.

`make test-compose` runs it. It needs a Docker engine and Compose (`docker compose` or `docker-compose`) and
fails without them. Missing base images are pulled.
"""

import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from deploy.containers.init import GROUPS
from services.worker.engine.native.build import TARGETS
from tests.kits.e2e.compose_stack import (
    OURS,
    SERVICES,
    UP_TIMEOUT_S,
    ComposeStack,
    compose_command,
    run,
    running_stack,
    text,
)
from tests.kits.waiting import wait_for

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]
ROLES = set(GROUPS) - {"grafana"}


@pytest.fixture(scope="module")
def stack() -> Iterator[ComposeStack]:
    with running_stack() as running:
        yield running


def reaches(stack: ComposeStack, service: str, host: str, port: int) -> str:
    """Connects from the service's container; returns `open` or the error's name."""
    probe = (
        "import socket\n"
        "try:\n"
        f"    socket.create_connection(({host!r}, {port}), timeout=2).close()\n"
        "    print('open')\n"
        "except OSError as error:\n"
        "    print(type(error).__name__)\n"
    )
    return stack.inside(service, "python", "-c", probe)


def say(stack: ComposeStack, service: str, *lines: str) -> list[str]:
    """Sends Redis commands from the service's container; returns the first line of each answer."""
    probe = (
        "import socket\n"
        "link = socket.create_connection(('redis-kv', 6379), timeout=5)\n"
        f"for line in {lines!r}:\n"
        "    link.sendall(line.encode() + b'\\r\\n')\n"
        "    print(link.recv(65536).decode().splitlines()[0])\n"
    )
    return stack.inside(service, "python", "-c", probe).splitlines()


def groups(stack: ComposeStack) -> list[str]:
    listed = stack.compose("run", "--rm", "-T", "ryz", "groups", "list", "--json")
    return [group["group"] for group in json.loads(listed)["data"]]


def addresses(stack: ComposeStack, service: str) -> list[str]:
    return stack.state(service, "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}").split()


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_becomes_healthy(stack: ComposeStack, service: str) -> None:
    stack.wait(service, "{{.State.Health.Status}}", "healthy")


def test_it_answers_and_streams(stack: ComposeStack) -> None:
    stack.wait("gateway", "{{.State.Health.Status}}", "healthy")
    models = httpx.get(f"{stack.url}/v1/models", timeout=10).json()
    assert [model["id"] for model in models["data"]] == ["demo"]
    assert text(stack.chat("What is Python?"))
    streamed = stack.chat("What is Python?", stream=True)
    lines = [line for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    parts = [json.loads(line[6:])["choices"] for line in lines[:-1]]
    assert "".join(part[0]["delta"].get("content") or "" for part in parts if part)


def test_a_session_keeps_its_context(stack: ComposeStack) -> None:
    if stack.state("worker-1", "{{.Config.Env}}").find("RYZ_ENGINE=torch") < 0:
        pytest.skip("RYZ_ENGINE is not torch: there is no model that could remember")
    session = f"compose-{secrets.token_hex(6)}"
    text(stack.chat("My name is Ada.", session))
    assert "Ada" in text(stack.chat("What is my name?", session))


def test_the_broker_serves_its_users_and_no_other(stack: ComposeStack) -> None:
    probe = (
        "import asyncio, os, sys\n"
        "from shared.bus.nats import NatsBus\n"
        "from shared.errors import InvalidRequest\n"
        "url = os.environ['RYZ_NATS_URL']\n"
        "async def connect(url):\n"
        "    try:\n"
        "        bus = await NatsBus.connect(url, name='probe')\n"
        "    except InvalidRequest:\n"
        "        return 'refused'\n"
        "    await bus.close()\n"
        "    return 'connected'\n"
        "for one in (url, 'nats://nats:4222', url.replace('gateway:', 'router:')):\n"
        "    print(asyncio.run(connect(one)))\n"
    )
    lines = stack.as_service("gateway", "python", "-c", probe).splitlines()
    said = [line for line in lines if " " not in line]
    assert said == ["connected", "refused", "refused"]
    assert "Violation" not in stack.compose("logs", "nats"), "a service may not do what it does"


def test_passwords_last_and_are_rotated_by_a_command(stack: ComposeStack) -> None:
    first = stack.password("RYZ_NATS_WORKER_PASSWORD")
    assert len(first) == 40
    assert "0 passwords are new" in stack.compose("run", "--rm", "-T", "init")
    assert stack.password("RYZ_NATS_WORKER_PASSWORD") == first
    key = stack.password("RYZ_SESSION_KEY")
    stack.compose("run", "--rm", "-T", "init", "rotate")
    assert stack.password("RYZ_NATS_WORKER_PASSWORD") != first
    assert stack.password("RYZ_SESSION_KEY") == key, "ids of sessions have it"
    stack.compose("restart", timeout_s=UP_TIMEOUT_S)
    for service in SERVICES:
        stack.wait(service, "{{.State.Health.Status}}", "healthy")
    assert text(stack.chat("What is Python?"))


def test_a_worker_is_the_group_of_its_number_and_computes_as_planned(stack: ComposeStack) -> None:
    cores = len(os.sched_getaffinity(0))
    for number in (1, 2):
        assert f"g{number}" in groups(stack)
        env = stack.inside(f"worker-{number}", "cat", f"/plan/g{number}.env").splitlines()
        assert "export RYZ_MODEL=/srv/models/demo" in env
        assert f"export RYZ_THREADS={max(1, cores // 2)}" in env
    stack.compose("up", "-d", "--scale", "worker=3", timeout_s=UP_TIMEOUT_S)
    stack.wait("worker-3", "{{.State.Health.Status}}", "healthy")
    assert "g3" in groups(stack)
    assert "nothing that it was made of has changed" in stack.compose("logs", "--no-color", "plan")
    stack.compose("up", "-d", timeout_s=UP_TIMEOUT_S)
    assert stack.container("worker-3") == ""


@pytest.mark.parametrize(
    ("service", "store"),
    [("gateway", "redis"), ("gateway", "redis-kv"), ("router", "redis"), ("worker-1", "redis")],
)
def test_the_store_is_out_of_reach_for_what_does_not_need_it(
    stack: ComposeStack, service: str, store: str
) -> None:
    stack.wait(store, "{{.State.Health.Status}}", "healthy")
    assert reaches(stack, service, store, 6379) == "gaierror"
    (address,) = addresses(stack, store)
    assert reaches(stack, service, address, 6379) in {"TimeoutError", "OSError"}
    assert reaches(stack, "kvstate", store, 6379) == "open"  # the probe can connect where it is allowed


def test_a_plain_socket_on_the_store_network_gets_nothing(stack: ComposeStack) -> None:
    commands = ("PING", "INFO", "KEYS *", "SET a b", "CONFIG GET *", "FLUSHALL", "AUTH x", "AUTH kvstate x")
    said = say(stack, "worker-1", *commands)
    assert [line.split()[0] for line in said] == ["-NOAUTH"] * 6 + ["-WRONGPASS"] * 2


def test_a_worker_that_was_taken_over_does_little_in_the_store(stack: ComposeStack) -> None:
    login = f"AUTH worker {stack.password('RYZ_REDIS_WORKER_PASSWORD')}"
    commands = (
        "INFO",
        "KEYS *",
        "HGET ryz:session:a:b r",
        "CONFIG GET *",
        "MODULE LIST",
        "FLUSHALL",
        "ACL LIST",
    )
    first, *refused = say(stack, "worker-1", login, *commands)
    assert first == "+OK"
    assert [line.split()[0] for line in refused] == ["-NOPERM"] * len(commands)


def test_the_brokers_monitoring_answers_inside_its_container_only(stack: ComposeStack) -> None:
    assert reaches(stack, "gateway", "nats", 4222) == "open"
    assert reaches(stack, "gateway", "nats", 8222) == "ConnectionRefusedError"


@pytest.mark.parametrize("service", ["gateway", "router", "kvstate", "worker-1"])
def test_a_service_gets_no_password_but_its_own(stack: ComposeStack, service: str) -> None:
    """Each reads the file of its own group in the volume of all passwords, and Docker shows none of them."""
    own = service.partition("-")[0]
    listing = (
        "import os\n"
        "for name in sorted(os.listdir('/run/ryzanstein')):\n"
        "    reads = os.access(f'/run/ryzanstein/{name}', os.R_OK)\n"
        "    print(name, reads, os.access('/run/ryzanstein', os.W_OK))\n"
    )
    rows = [line.split() for line in stack.inside(service, "python", "-c", listing).splitlines()]
    assert {name for name, reads, _ in rows if reads == "True"} == {f"{own}.env"}
    assert {name for name, _, _ in rows} == {"all.env", "grafana", *(f"{role}.env" for role in ROLES)}
    assert {writes for _, _, writes in rows} == {"False"}
    assert "://" + own not in stack.state(service, "{{.Config.Env}}")


@pytest.mark.parametrize("service", ["gateway", "worker-1"])
def test_images_carry_their_bill_of_materials(stack: ComposeStack, service: str) -> None:
    bill = json.loads(stack.inside(service, "cat", "/srv/ryzanstein/sbom.json"))
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "ryzanstein"
    listed = {one["name"].lower().replace("_", "-"): one["version"] for one in bill["components"]}
    listing = (
        "import importlib.metadata as m, json, sys\n"
        "paths = [path for path in sys.path if path.startswith('/srv/venv')]\n"
        "found = m.distributions(path=paths)\n"
        "print(json.dumps({one.name.lower().replace('_', '-'): one.version for one in found}))"
    )
    assert listed == json.loads(stack.inside(service, "python", "-c", listing))
    assert {"fastapi", "nats-py", "redis", "msgspec"} <= set(listed)
    assert ("torch" in listed) == service.startswith("worker")


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_runs_as_root_or_writes_to_its_image(stack: ComposeStack, service: str) -> None:
    assert stack.inside(service, "id", "-u") == "10001"
    assert stack.state(service, "{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}}") == "true [ALL]"


@pytest.mark.parametrize("service", OURS)
def test_only_workers_have_torch(stack: ComposeStack, service: str) -> None:
    probe = "import importlib.util as u; print(bool(u.find_spec('torch')))"
    assert stack.inside(service, "python", "-c", probe) == str(service.startswith("worker"))


def test_workers_bring_their_kernels_for_every_machine(stack: ComposeStack) -> None:
    probe = (
        "from services.worker.engine.native import build as b; "
        "print(sorted(str(b.find(name)) for name in (b.TARGETS if b.targets() else ())))"
    )
    found = stack.inside("worker-1", "python", "-c", probe)
    if found == "[]":
        pytest.skip("the kernels are for x86-64 with AVX2")
    assert found.count("/srv/ryzanstein/services/worker/engine/native/build/kernels-") == len(TARGETS)
    load = "from services.worker.engine.native.library import kernels; print(kernels().target)"
    assert stack.inside("worker-1", "python", "-c", load) in TARGETS  # `inside` runs as the service's user
    if "RYZ_KERNELS=auto" in stack.state("worker-1", "{{.Config.Env}}"):
        stack.wait("worker-1", "{{.State.Health.Status}}", "healthy")
        assert re.search(r"native avx(2|vnni|512)[^\n]* KV", stack.compose("logs", "worker"))


@pytest.mark.parametrize("service", ["worker-1", "router", "kvstate", "gateway"])
def test_a_service_that_dies_comes_back(stack: ComposeStack, service: str) -> None:
    with suppress(AssertionError):  # the shell ends with the container
        stack.inside(service, "sh", "-c", "kill -9 -1")  # all but the container's init, which ends then
    stack.wait(service, "{{.RestartCount}}", "1")
    if service == "worker-1":
        assert text(stack.chat("What is Python?"))  # the other group answers
    stack.wait(service, "{{.State.Health.Status}}", "healthy")
    wait_for(lambda: stack.chat("What is Python?").status_code == 200, "an answer", 30)


def test_it_stops_in_order_and_leaves_nothing(stack: ComposeStack) -> None:
    containers = [stack.container(service) for service in SERVICES]
    began = time.monotonic()
    stack.compose("stop", timeout_s=60)
    assert time.monotonic() - began < 25, "a service was killed after its grace period"
    codes = [run("docker", "inspect", "-f", "{{.State.ExitCode}}", one) for one in containers]
    assert dict(zip(SERVICES, codes, strict=True)) == dict.fromkeys(SERVICES, "0")
    stack.compose("down", "--volumes", timeout_s=60)
    label = f"label=com.docker.compose.project={stack.project}"
    assert run("docker", "ps", "-aq", "--filter", label) == ""
    assert run("docker", "network", "ls", "-q", "--filter", label) == ""
    assert run("docker", "volume", "ls", "-q", "--filter", label) == ""


def test_sessions_outlive_their_container_where_asked() -> None:
    """Starts a separate project with Redis only."""
    stack = ComposeStack(compose_command())
    stack.files = ("-f", "compose.yaml", "-f", "deploy/compose.persistent.yaml")
    word = "a-password-of-the-operator"
    stack.env["RYZ_REDIS_KVSTATE_PASSWORD"] = word
    as_kvstate = ("redis-cli", "--no-auth-warning", "--user", "kvstate", "--pass", word)
    try:
        for say, expected in (("HSET", "1"), ("HGET", "kept")):
            stack.compose("up", "-d", "redis", timeout_s=UP_TIMEOUT_S)
            stack.wait("redis", "{{.State.Health.Status}}", "healthy")
            values = ("r", "kept") if say == "HSET" else ("r",)
            assert stack.inside("redis", *as_kvstate, say, "ryz:session:a:b", *values) == expected
            time.sleep(1.5)  # Redis writes to disk once a second
            stack.compose("down", timeout_s=60)
    finally:
        stack.compose("down", "--volumes", timeout_s=60)
