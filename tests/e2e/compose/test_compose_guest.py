"""A server of others behind a group of the stack in containers, by `deploy/compose.guest.yaml`."""

import json
from collections.abc import Iterator

import pytest

from tests.kits.e2e.compose_stack import ROOT, UP_TIMEOUT_S, ComposeStack, run, running_stack, text
from tests.kits.waiting import wait_for

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]
TOKENIZER = "/srv/models/demo"
SAYS = "a guest in a container says so "


@pytest.fixture(scope="module")
def stack() -> Iterator[ComposeStack]:
    guest = {
        "RYZ_REMOTE_URL": "http://false-vllm:8000",
        "RYZ_REMOTE_MODEL": "demo-there",
        "RYZ_GUEST_TOKENIZER": TOKENIZER,
        "RYZ_GROUPS": "1",
    }
    with running_stack(env=guest, files=("-f", "compose.yaml", "-f", "deploy/compose.guest.yaml")) as running:
        yield running


@pytest.fixture(scope="module")
def server(stack: ComposeStack) -> Iterator[str]:
    """An imitation of vLLM's server, in a network that only the guest's group shares."""
    name = f"{stack.project}-false-vllm"
    own = ["-v", f"{ROOT}/tests:/srv/tests:ro", "-e", "PYTHONPATH=/srv/ryzanstein:/srv", "--read-only"]
    place = ["--network", f"{stack.project}_guests", "--network-alias", "false-vllm"]
    command = ["python", "-m", "tests.kits.guests.false_server", "--host", "0.0.0.0", "--port", "8000"]
    voice = ["--model", "demo-there", "--tokenizer", f"{TOKENIZER}/tokenizer.json", "--text", SAYS]
    try:
        run("docker", "run", "-d", "--name", name, *own, *place, "ryzanstein-worker", *command, *voice)
        yield name
    finally:
        run("docker", "rm", "-f", name)


def test_it_joins_the_fleet_and_answers_where_own_groups_are_gone(stack: ComposeStack, server: str) -> None:
    stack.wait("worker-guest", "{{.State.Health.Status}}", "healthy", UP_TIMEOUT_S)
    listed = json.loads(stack.compose("run", "--rm", "-T", "ryz", "groups", "list", "--json"))["data"]
    assert {group["group"]: group["state"] for group in listed} == {"g1": "ready", "guest": "ready"}
    stack.compose("stop", "worker")

    wait_for(lambda: stack.chat("Hello", max_tokens=4).status_code == 200, "an answer of the guest", 60)
    answer = stack.chat("What is Python?", max_tokens=16)
    assert answer.headers["x-ryz-group"] == "guest"
    assert SAYS.strip().startswith(text(answer).strip()[:8])
    run("docker", "stop", "--time", "1", server)
    wait_for(lambda: stack.chat("And now?", max_tokens=4).status_code == 503, "a refusal", 120)
