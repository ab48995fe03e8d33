"""Each client library runs its cases against SmolLM2; what it cannot do is named, and nothing else fails."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.clients.environments import OutsideClient
from tests.clients.outside_clients import CLIENTS
from tests.kits.docs.pages import blocks_with, run_blocks
from tests.kits.e2e.stack import Stack

pytestmark = [pytest.mark.clients, pytest.mark.timeout(2400)]
MODEL = "smollm2-135m"
CASES_S = 600.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a stack."""
    options = ("--model", MODEL, "--groups", "1", "--tensor-parallel", "1")
    with Stack(tmp_path_factory.mktemp("clients"), *options) as stack:
        yield stack.await_ready().state.url
        assert stack.end() == 0


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.script.partition(".")[0])
def test_cases_of(client: OutsideClient, url: str) -> None:
    client.install()
    ended = subprocess.run(
        client.command(url, MODEL), capture_output=True, text=True, timeout=CASES_S, check=False
    )
    print(ended.stdout, ended.stderr[-8000:], sep="\n")
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"case"')]
    assert lines
    assert ended.returncode == 0
    failed = {line["case"]: line["error"] for line in lines if not line["ok"]}
    assert failed.keys() == {case for case, _ in client.cannot}, failed


@pytest.mark.parametrize("client", [one for one in CLIENTS if one.recipe], ids=lambda client: client.recipe)
def test_recipe_of(client: OutsideClient, url: str) -> None:
    """The program that the recipe shows, in the environment of its client."""
    client.install()
    found = blocks_with(client.recipe, "runs with its client")
    assert found
    words = {"127.0.0.1:8000": url.removeprefix("http://")}
    run_blocks(found, client.folder, {}, words, programs=client.folder / "bin")
