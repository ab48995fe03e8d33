"""`ryz models status`, `load`, `unload` and so on, against a host's agent on a real broker."""

import asyncio
import json
from pathlib import Path

import pytest
import pytest_asyncio

from shared.bus.nats import NatsBus
from shared.client import ModelsClient, ModelWish
from shared.errors import ModelNotFound, Unavailable
from shared.messages import LoadAdapterCall
from tests.kits.adapters.host import AdapterHost
from tests.kits.model_host import ModelHost, state_of
from tests.kits.programs.ryz_command import Ryz, refused, ryz_command


@pytest.fixture
def ryz(nats_url: str, tmp_path: Path) -> Ryz:
    """Runs commands in a directory without a running stack."""
    return ryz_command("models", "--nats-url", nats_url, "--state-dir", str(tmp_path))


@pytest_asyncio.fixture
async def host(nats_bus: NatsBus) -> ModelHost:
    """A host of three models, and what routers say of them."""
    offered = [
        state_of("small", "ready", charged_bytes=3 * 2**20, pinned=True),
        state_of("second", "asleep", aliases=["two"], waiting=4, load_s=0.5),
        state_of("lost", "failed", why="no such file", retry_s=20.0),
    ]
    found = await ModelHost(nats_bus, offered).start(as_router=True)
    await nats_bus.flush()
    return found


async def test_the_table_of_models(ryz: Ryz, host: ModelHost) -> None:
    rows = [line.split() for line in (await ryz("status")).stdout.splitlines()]
    assert rows[0] == ["model", "aliases", "state", "groups", "waiting", "memory", "load", "why"]
    assert " ".join(rows[1]) == "lost failed 0/0 0 (300 MiB) - no such file, again in 20 s"
    assert " ".join(rows[2]) == "second two asleep 0/0 4 (300 MiB) 0.5 s"
    assert " ".join(rows[3]) == "small ready 1/1 0 3 MiB - pinned"
    data = json.loads((await ryz("status", "--json")).stdout)["data"]
    assert [(one["name"], one["phase"], one["waiting"]) for one in data] == [
        ("lost", "failed", 0), ("second", "asleep", 4), ("small", "ready", 0)
    ]  # fmt: skip


async def test_a_model_is_loaded_scaled_and_unloaded(ryz: Ryz, host: ModelHost) -> None:
    host.load_s = 1.0  # longer than the time between two questions, so that the way is seen
    loaded = await ryz("load", "two")
    assert "second is ready: 1 group" in loaded.stdout
    assert "second: loading, 0 of 0 groups ready" in loaded.stderr
    host.load_s = 0.05
    scaled = await ryz("scale", "second", "2", "--json")
    assert json.loads(scaled.stdout)["groups_ready"] == 2
    assert refused(await ryz("scale", "second", "3"), 1) == "Model 'second' has room for 2 groups here."
    assert "No group of second runs any more: it is asleep" in (await ryz("sleep", "second")).stdout
    assert (
        "second is asleep; the wish to wake it is noted" in (await ryz("wake", "second", "--no-wait")).stdout
    )
    assert "it is absent" in (await ryz("unload", "second")).stdout
    assert [wish.action for wish in host.wishes] == [
        "load", "scale", "scale", "sleep", "wake", "unload"
    ]  # fmt: skip


async def test_adapters_are_loaded_listed_and_unloaded(
    ryz: Ryz, host: ModelHost, nats_bus: NatsBus, tmp_path: Path
) -> None:
    adapters = await AdapterHost(nats_bus, "small").start()
    await nats_bus.flush()
    (tmp_path / "fr").mkdir()
    loaded = await ryz("load-adapter", "small", "fr", str(tmp_path / "." / "fr"))
    assert loaded.stdout == "small:fr is known: rank 8, 1 MiB in each group that uses it.\n"
    assert adapters.asked == [LoadAdapterCall(base="small", name="fr", source=str(tmp_path / "fr"))]
    listed = (await ryz("status")).stdout.splitlines()
    assert listed[-2].split() == ["adapter", "rank", "memory", "tenant", "source"]
    assert listed[-1].split()[:5] == ["small:fr", "8", "1", "MiB", "default"]
    (shown,) = json.loads((await ryz("status", "--json")).stdout)["adapters"]
    assert (shown["model"], shown["source"], shown["tenant"]) == ("small:fr", str(tmp_path / "fr"), "default")

    adapters.content = "b"
    taken = refused(await ryz("load-adapter", "small", "fr", "/elsewhere"), 1)
    assert taken.startswith("Model 'small' has an adapter 'fr' with other content: unload it")
    more = ("--replace", "--tenant", "acme", "--json")
    replaced = json.loads((await ryz("load-adapter", "small", "fr", "/elsewhere", *more)).stdout)
    assert (replaced["fingerprint"], replaced["tenant"]) == ("b" * 32, "acme")
    assert (await ryz("unload-adapter", "small", "fr")).stdout == "small:fr is known no more.\n"
    assert refused(await ryz("unload-adapter", "small", "fr"), 2) == "Model 'small' has no adapter 'fr'."
    assert json.loads((await ryz("status", "--json")).stdout)["adapters"] == []
    assert refused(await ryz("load-adapter", "none", "fr", "/x"), 2) == "No group serves model 'none'."
    assert refused(await ryz("load-adapter", "small", "a/b", "/x"), 1).startswith("'a/b' is no name of an")
    relative = refused(await ryz("load-adapter", "small", "fr", "not/here"), 2)
    assert relative == "There is no not/here here. A path on another host has to begin with a slash."


async def test_without_a_kv_state_service_adapters_are_not_known(ryz: Ryz, host: ModelHost) -> None:
    listed = await ryz("status")
    assert "small" in listed.stdout
    assert "Adapters are not known" in listed.stderr
    assert json.loads((await ryz("status", "--json")).stdout)["adapters"] is None


async def test_what_goes_wrong_is_one_sentence(ryz: Ryz, host: ModelHost) -> None:
    unknown = refused(await ryz("load", "none"), 2)
    assert unknown == "No host offers model 'none'; models that are: lost, second, small."
    host.load_s = 30.0
    late = refused(await ryz("load", "second", "--timeout", "0.5"), 1)
    assert late.startswith("After 0.5 s second is loading, 0 of 0 groups ready")
    host.load_s, host.fails = 0.05, "the file is damaged"
    assert refused(await ryz("load", "second"), 1) == "second could not be loaded: the file is damaged."
    host.offered.clear()
    assert "ryz up --models" in refused(await ryz("load", "second"), 1)
    assert "No host loads models here" in (await ryz("status")).stdout
    nowhere = refused(await ryz("status", "--nats-url", "nats://127.0.0.1:9"), 1)
    assert "No broker answers at nats://127.0.0.1:9" in nowhere
    for task in host.tasks:
        task.cancel()


async def test_a_wait_outlasts_a_router_that_restarts(nats_bus: NatsBus) -> None:
    """While no router answers the wait goes on, and ends with the state that the next one knows."""
    wish, client = ModelWish("second", "load"), ModelsClient(nats_bus)
    with pytest.raises(Unavailable):
        await client.wait_until_met(wish, 0.5)
    waiting = asyncio.create_task(client.wait_until_met(wish, 30.0))
    await asyncio.sleep(0.3)
    await ModelHost(nats_bus, [state_of("second", "ready")]).start(as_router=True)
    assert (await waiting).phase == "ready"
    with pytest.raises(ModelNotFound):
        await client.wait_until_met(ModelWish("none", "sleep"), 5.0)
