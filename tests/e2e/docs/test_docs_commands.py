"""Commands of README and docs run as they stand, all against one stack, and show what the pages show."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from cli.models.catalogue import DEMO
from cli.stack.default_model import DEFAULT
from tests.kits.docs.pages import RUN, run_blocks, scratch
from tests.kits.e2e.stack import Stack
from tests.kits.servers import free_port
from tests.kits.waiting import PATIENCE_S

HTTP, GRPC, NATS = "127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:4222"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two groups of the demo model under the name of the default model, which answers to its own as well."""
    folder = tmp_path_factory.mktemp("docs")
    scratch(folder)
    options = ("--tensor-parallel", "1", "--grpc-port", str(free_port()), "--model-name", DEFAULT)
    with Stack(folder, *options, env={"RYZ_MODEL_ALIASES": f"{DEMO}={DEFAULT}"}) as running:
        yield running.await_ready()
        assert running.end() == 0


@pytest.fixture
def words(stack: Stack) -> Iterator[dict[str, str]]:
    """The addresses of the stack; it is open and has no tenants when a page begins."""
    state = stack.state
    broker = urlsplit(state.nats_url).netloc.rpartition("@")[2]
    yield {HTTP: state.url.removeprefix("http://"), GRPC: state.grpc_address, NATS: broker}
    key = Path(stack.state_dir.path, "admin.key").read_text().strip()
    with httpx.Client(
        base_url=f"{state.url}/v1/manage", headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S
    ) as client:
        client.patch("/keys", json={"keys_required": False}).raise_for_status()
        for tenant in client.get("/tenants").raise_for_status().json()["tenants"]:
            client.delete(f"/tenants/{tenant['id']}", params={"with_keys": "true"}).raise_for_status()


@pytest.mark.parametrize("page", RUN)
def test_commands_of(page: str, stack: Stack, words: dict[str, str]) -> None:
    home = str(stack.folder.parent / f"{stack.folder.name}-state-home")
    run_blocks(RUN[page], stack.folder, {"XDG_STATE_HOME": home}, words)
