"""The stack in containers for its operator: `ryz`, stopped groups, bad passwords, a models file."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.kits.e2e.compose_stack import UP_TIMEOUT_S, ComposeStack, run, running_stack, text

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def stack() -> Iterator[ComposeStack]:
    with running_stack() as running:
        yield running


def test_the_command_shows_the_groups_and_a_stopped_one_as_stopped(stack: ComposeStack) -> None:
    def states() -> dict[str, str]:
        listed = stack.compose("run", "--rm", "-T", "ryz", "groups", "list", "--json")
        return {group["group"]: group["state"] for group in json.loads(listed)["data"]}

    assert states() == {"g1": "ready", "g2": "ready"}
    assert json.loads(stack.compose("run", "--rm", "-T", "ryz", "models", "list", "--json"))
    run("docker", "stop", stack.container("worker-2"))
    assert states() == {"g1": "ready", "g2": "stopped"}
    stack.compose("stop", "worker")
    answer = httpx.get(f"{stack.url}/ready", timeout=5)
    assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "no_group")
    stack.compose("start", "worker", timeout_s=UP_TIMEOUT_S)
    for service in ("worker-1", "worker-2", "gateway"):
        stack.wait(service, "{{.State.Health.Status}}", "healthy")
    assert httpx.get(f"{stack.url}/ready", timeout=5).status_code == 200


def test_models_are_pulled_into_a_volume_that_workers_read(stack: ComposeStack) -> None:
    stack.compose("run", "--rm", "-T", "--entrypoint", "sh", "ryz", "-c", "echo kept > /models/probe")
    assert stack.inside("worker-1", "cat", "/models/probe") == "kept"
    with pytest.raises(AssertionError, match="Read-only file system"):
        stack.inside("worker-1", "touch", "/models/other")


def test_a_password_that_cannot_work_is_told_before_anything_starts(stack: ComposeStack) -> None:
    other = ComposeStack(stack.command, env={"RYZ_NATS_ROUTER_PASSWORD": "7" + "digits-first" * 2})
    try:
        with pytest.raises(AssertionError):
            other.compose("up", "-d", timeout_s=UP_TIMEOUT_S)
        output = other.compose("logs", "init")
        assert "RYZ_NATS_ROUTER_PASSWORD begins with a digit" in output
        assert "digits-first" not in output
        assert other.container("nats") == "" or other.state("nats", "{{.State.Status}}") == "created"
    finally:
        other.compose("down", "--volumes", timeout_s=60)


def test_a_models_file_is_served_with_all_of_its_models(stack: ComposeStack, tmp_path: Path) -> None:
    """The last test of this stack, whose workers are others from here on."""
    models = tmp_path / "models.toml"
    tmp_path.chmod(0o755)  # the user of the containers reads it
    one = '[[models]]\nsource = "demo"\naliases = ["mini"]\ngroups = 2\n'
    models.write_text(f'{one}[[models]]\nsource = "demo"\nname = "two"\nkv_cache = 4096\ngroups = 1\n')
    stack.env = {"RYZ_MODELS_FILE": str(models), "RYZ_MODEL": ""}
    for says in ("two: `kv_cache` is no field of a model; did you mean", "has 3 groups, and there are 2"):
        stack.compose("rm", "--stop", "--force", "gateway", "worker", "plan")
        with pytest.raises(AssertionError):
            stack.compose("up", "-d", timeout_s=UP_TIMEOUT_S)
        assert says in stack.compose("logs", "--no-color", "plan")
        models.write_text(models.read_text().replace("kv_cache =", "kv_cache_tokens ="))
    stack.env["RYZ_GROUPS"] = "3"
    stack.compose("up", "-d", timeout_s=UP_TIMEOUT_S)
    stack.wait("gateway", "{{.State.Health.Status}}", "healthy")
    listed = httpx.get(f"{stack.url}/v1/models", timeout=10).json()["data"]
    assert {model["id"]: model["aliases"] for model in listed} == {"demo": ["mini"], "two": []}
    for asked, served in (("demo", "demo"), ("mini", "demo"), ("two", "two")):
        answer = stack.chat("What is Python?", model=asked)
        assert text(answer)
        assert answer.json()["model"] == served
    groups = json.loads(stack.compose("run", "--rm", "-T", "ryz", "groups", "list", "--json"))["data"]
    assert {group["group"]: group["model"] for group in groups} == {"g1": "demo", "g2": "demo", "g3": "two"}
    assert "export RYZ_KV_CACHE_TOKENS=4096" in stack.inside("worker-3", "cat", "/plan/g3.env")
