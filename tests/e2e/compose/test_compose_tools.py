"""The stack in containers for its operator: the command `ryz`, stopped groups, models, bad passwords."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.kits.e2e.compose_stack import UP_TIMEOUT_S, ComposeStack, running_stack

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def stack() -> Iterator[ComposeStack]:
    with running_stack() as running:
        yield running


def test_the_command_shows_the_groups_and_a_stopped_one_as_stopped(stack: ComposeStack) -> None:
    def states() -> dict[str, str]:
        listed = stack.compose("run", "--rm", "-T", "ryz", "groups", "list", "--json")
        return {group["group"]: group["state"] for group in json.loads(listed)["data"]}

    assert states() == {"g0": "ready", "g1": "ready"}
    assert json.loads(stack.compose("run", "--rm", "-T", "ryz", "models", "list", "--json"))
    stack.compose("stop", "worker-g1")
    assert states() == {"g0": "ready", "g1": "stopped"}
    stack.compose("stop", "worker-g0")
    answer = httpx.get(f"{stack.url}/ready", timeout=5)
    assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "no_group")
    stack.compose("start", "worker-g0", "worker-g1")
    for service in ("worker-g0", "worker-g1", "gateway"):
        stack.wait(service, "{{.State.Health.Status}}", "healthy")
    assert httpx.get(f"{stack.url}/ready", timeout=5).status_code == 200


def test_models_are_pulled_into_a_volume_that_workers_read(stack: ComposeStack) -> None:
    stack.compose("run", "--rm", "-T", "--entrypoint", "sh", "ryz", "-c", "echo kept > /models/probe")
    assert stack.inside("worker-g0", "cat", "/models/probe") == "kept"
    with pytest.raises(AssertionError, match="Read-only file system"):
        stack.inside("worker-g0", "touch", "/models/other")


def test_a_password_that_cannot_work_is_told_before_anything_starts(stack: ComposeStack) -> None:
    other = ComposeStack(stack.command)
    other.passwords["RYZ_NATS_ROUTER_PASSWORD"] = "7" + "digits-first" * 2
    try:
        with pytest.raises(AssertionError):
            other.compose("up", "-d", timeout_s=UP_TIMEOUT_S)
        output = other.compose("logs", "check-env")
        assert "RYZ_NATS_ROUTER_PASSWORD begins with a digit" in output
        assert "digits-first" not in output
        assert other.container("nats") == "" or other.state("nats", "{{.State.Status}}") == "created"
    finally:
        other.compose("down", "--volumes", timeout_s=60)
