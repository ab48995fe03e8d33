"""One stack with models that only one tenant may use: all transports treat others as if there were none."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.stack.host.ports import pick_ports
from shared import subjects
from shared.bus.nats import NatsBus
from shared.client import InferenceClient
from shared.errors import ModelNotFound
from shared.messages import DetokenizeQuery, TokenizeQuery
from shared.subjects import OutsideService
from tests.kits.e2e.batches import run_chats
from tests.kits.e2e.models_stack import models_stack
from tests.kits.e2e.stack import Stack, ryz
from tests.kits.gateway.transports import TRANSPORTS
from tests.kits.waiting import PATIENCE_S, wait_for
from tests.kits.worker.leader import chat

OURS, THEIRS = "key-of-ours", "key-of-theirs"
MODELS = """
[[models]]
name = "all"
source = "demo"

[[models]]
name = "mine"
source = "demo"
aliases = ["my-alias"]
tenants = ["ours", "guest"]

[[models]]
name = "later"
source = "demo"
load = "demand"
tenants = ["ours"]
"""
HIDDEN = ("mine", "my-alias", "later")


@dataclass(frozen=True)
class Address:
    """What a kit needs of a gateway."""

    url: str
    port: int
    grpc_port: int


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("model-tenants")
    env = {"RYZ_API_KEYS": f"{OURS}:ours,{THEIRS}:theirs"}
    options = ("--engine", "null", "--grpc-port", str(pick_ports(1)[0]))
    with models_stack(folder, MODELS, *options, env=env) as stack:
        yield stack


@pytest.fixture
def address(stack: Stack) -> Address:
    url = stack.state.url
    return Address(url, int(url.rpartition(":")[2]), int(stack.state.grpc_address.rpartition(":")[2]))


def client(stack: Stack, key: str) -> httpx.Client:
    return httpx.Client(base_url=stack.state.url, timeout=60, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.parametrize("transport", [name for name in TRANSPORTS if name != "bus"])
async def test_no_transport_lets_another_tenant_in(address: Address, transport: str) -> None:
    ask: Any = TRANSPORTS[transport]
    unknown = await ask(address, model="nothing", key=THEIRS, max_tokens=4)
    assert unknown.code == "model_not_found"
    for name in HIDDEN:
        refused = await ask(address, model=name, key=THEIRS, max_tokens=4)
        assert (refused.code, refused.message.replace(name, "nothing")) == (unknown.code, unknown.message)
        assert not any(hidden in refused.message.replace(name, "") for hidden in HIDDEN)
    for name in ("all", "mine", "my-alias"):
        assert not (await ask(address, model=name, key=OURS, max_tokens=4)).code
    assert not (await ask(address, model="all", key=THEIRS, max_tokens=4)).code


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/tokenize", {"prompt": "Hi"}),
        ("/detokenize", {"tokens": [1, 2]}),
        ("/v1/sessions", {}),
    ],
)
def test_nor_does_any_route(stack: Stack, route: str, body: dict[str, Any]) -> None:
    with client(stack, THEIRS) as http:
        unknown = http.post(route, json={"model": "nothing", **body})
        assert unknown.status_code == 404, unknown.text
        for name in HIDDEN:
            refused = http.post(route, json={"model": name, **body})
            assert refused.status_code == 404, refused.text
            shown, expected = refused.json(), unknown.json()
            shown.pop("request_id", None), expected.pop("request_id", None)
            assert json.dumps(shown).replace(name, "nothing") == json.dumps(expected)
    with client(stack, OURS) as http:
        allowed = http.post(route, json={"model": "mine", **body})
        assert allowed.status_code in {200, 201, 400}, allowed.text  # the null engine makes no embeddings


def test_lists_have_what_the_tenant_may_use(stack: Stack) -> None:
    with client(stack, OURS) as ours, client(stack, THEIRS) as theirs:
        assert {one["id"] for one in ours.get("/v1/models").json()["data"]} == {"all", "mine", "later"}
        assert {one["id"] for one in theirs.get("/v1/models").json()["data"]} == {"all"}
        assert "ours" not in theirs.get("/v1/models").text
        for name in HIDDEN:
            assert ours.get(f"/v1/models/{name}").status_code == 200
            unknown, refused = theirs.get("/v1/models/nothing"), theirs.get(f"/v1/models/{name}")
            assert refused.status_code == unknown.status_code == 404
            assert refused.text.replace(name, "nothing") == unknown.text


@pytest.mark.parametrize(("key", "seen"), [(OURS, {"all", "mine"}), (THEIRS, {"all"})])
def test_the_view_of_the_cluster_leaves_its_groups_out(stack: Stack, key: str, seen: set[str]) -> None:
    with client(stack, key) as http, http.stream("GET", "/cluster/events") as events:
        for line in events.iter_lines():
            if line.startswith("data: ") and (groups := json.loads(line.removeprefix("data: "))["groups"]):
                models = {one["model"] for one in groups}
                assert models <= seen
                if models == seen:
                    return
    raise AssertionError(f"groups of {seen} were not shown")


def test_batches_of_another_tenant_fail_line_by_line(stack: Stack) -> None:
    with client(stack, THEIRS) as http:
        batch = run_chats(http, {name: name for name in ("all", "mine", "nothing")})
        assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
        errors = http.get(f"/v1/files/{batch['error_file_id']}/content").text.splitlines()
        assert all("models that are: all" in line for line in errors), errors


async def test_services_outside_are_of_a_tenant_too(stack: Stack) -> None:
    urls = dict[str, str]()
    for name, tenant in (("friend", "guest"), ("stranger", "theirs")):
        await asyncio.to_thread(ryz, "tenants", "create", tenant, cwd=stack.folder)
        make = ("keys", "create", "--bus-user", name, "--tenant", tenant)
        done = await asyncio.to_thread(ryz, *make, cwd=stack.folder)
        assert done.returncode == 0, done.stderr
        urls[name] = dict(line.split("=", 1) for line in done.stdout.split())["RYZ_NATS_URL"]
    assert set(await _tried(urls["friend"], OutsideService("guest", "friend"))) == {
        "answer",
        "tokens",
        "text",
        "complete",
    }
    refused = await _tried(urls["stranger"], OutsideService("theirs", "stranger"))
    assert refused == {}


async def _tried(url: str, caller: OutsideService) -> dict[str, object]:
    """What a service outside gets of the model, by what it asked for; anything but a 404 is an error."""
    bus = await NatsBus.connect(url, name="test", connect_wait_s=5)
    asker = InferenceClient(bus, caller=caller)
    found = dict[str, object]()
    try:
        await asker.start()
        listed = [card.name for card in await asker.list_models()]
        calls = {
            "answer": asker.complete(chat("r", model="mine", reply_to=""), timeout_s=PATIENCE_S),
            "tokens": asker.tokenize(TokenizeQuery(model="mine", prompt="Hi"), timeout_s=PATIENCE_S),
            "text": asker.detokenize(
                DetokenizeQuery(model="mine", token_ids=b"a\0\0\0"), timeout_s=PATIENCE_S
            ),
            "complete": _completed(bus, caller),
        }
        results = await asyncio.gather(*calls.values(), return_exceptions=True)
        found = {
            name: one for name, one in zip(calls, results, strict=True) if not isinstance(one, BaseException)
        }
        refused = [one for one in results if isinstance(one, BaseException)]
        assert all(isinstance(one, ModelNotFound) for one in refused), refused
        assert all("mine" not in str(one).partition("; ")[2] for one in refused), refused
        assert ("mine" in listed) == bool(found)
    finally:
        await asker.close()
        await bus.close()
    return found


async def _completed(bus: NatsBus, caller: OutsideService) -> bytes:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    answer = await bus.request(
        subjects.complete("mine", caller), json.dumps(body).encode(), timeout_s=PATIENCE_S
    )
    if answer.headers["Ryz-Status"] == "404":
        raise ModelNotFound(json.loads(answer.data)["error"]["message"])
    assert answer.headers["Ryz-Status"] == "200", answer.data
    return answer.data


def test_adapters_of_a_hidden_model_do_not_exist_for_another_tenant(stack: Stack, tmp_path: Path) -> None:
    def ids(http: httpx.Client) -> set[str]:
        return {one["id"] for one in http.get("/v1/models").json()["data"]}

    def ask(http: httpx.Client, model: str) -> httpx.Response:
        return http.post("/v1/completions", json={"model": model, "prompt": "Hi", "max_tokens": 4})

    (tmp_path / "adapter").write_text("of the null engine")
    asked = {"lora_name": "secret", "lora_path": str(tmp_path), "base_model_name": "mine"}
    with client(stack, OURS) as ours, client(stack, THEIRS) as theirs:
        loaded = ours.post("/v1/load_lora_adapter", json=asked)
        assert loaded.status_code == 200, loaded.text
        wait_for(lambda: "mine:secret" in ids(ours), "the adapter is listed")
        assert not any("secret" in name for name in ids(theirs))
        unknown = ask(theirs, "nothing").json()["error"]
        for name in ("mine:secret", "my-alias:secret", "secret"):
            answer = ask(ours, name)
            assert (answer.status_code, answer.json()["model"]) == (200, "mine:secret")
            assert ask(theirs, name).status_code == 404
        for name in ("mine:secret", "mine:other", "secret"):
            refused = ask(theirs, name).json()["error"]
            assert refused["message"].replace(name, "nothing") == unknown["message"]
