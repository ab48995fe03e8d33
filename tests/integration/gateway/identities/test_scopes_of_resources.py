"""What keys may do with models, sessions, batches, streams and what operators manage."""

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio

from services.gateway.transports.grpc.protocol import inference_pb2 as pb
from shared.accounts.keys import NewKey
from tests.kits.gateway.gateway import WORDS, Gateway, running_gateway
from tests.kits.gateway.grpc_client import bare_client
from tests.kits.servers import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(
        grpc_port=free_port(), model_aliases="gpt=demo", files_dir="/nonexistent"
    ) as one:
        await one.fleet.accounts.require_keys()
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as client:
        yield client


async def bearer(gateway: Gateway, **scopes: object) -> dict[str, str]:
    """The header of a new key."""
    return of(await gateway.fleet.accounts.add_key("ada", **scopes))  # type: ignore[arg-type]


def of(key: NewKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.text}"}


def told(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_models_are_listed_that_a_key_may_use(gateway: Gateway, http: httpx.AsyncClient) -> None:
    for models, listed in (([], ["demo", "a/b"]), (["a/b"], ["a/b"]), (["gpt"], ["demo"]), (["none"], [])):
        found = await http.get("/v1/models", headers=await bearer(gateway, models=models))
        assert [one["id"] for one in found.json()["data"]] == listed
    limited = await bearer(gateway, models=["a/b"])
    assert (await http.get("/v1/models/a/b", headers=limited)).status_code == 200
    hidden, unknown = [await http.get(f"/v1/models/{name}", headers=limited) for name in ("demo", "none")]
    assert told(hidden) == told(unknown) == (404, "model_not_found")
    assert hidden.text.replace("demo", "none") == unknown.text


async def test_models_of_a_key_hold_for_the_questions_of_grpc(gateway: Gateway) -> None:
    key = await gateway.fleet.accounts.add_key("ada", models=["a/b"])
    metadata = [("authorization", f"Bearer {key.text}")]
    async with bare_client(gateway) as client:
        index = await client.unary(
            "RepositoryIndex", pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse, metadata=metadata
        )
        assert [model.name for model in index.models] == ["a/b"]
        ready = pb.ModelReadyRequest(name="demo")
        found = await client.unary("ModelReady", ready, pb.ModelReadyResponse, metadata=metadata)
        assert not found.ready
        request = pb.ModelMetadataRequest(name="demo")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.unary("ModelMetadata", request, pb.ModelMetadataResponse, metadata=metadata)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("path", "body", "api"),
    [
        (CHAT, BODY, "chat"),
        ("/v1/completions", {"model": "demo", "prompt": "Hi"}, "completions"),
        ("/v1/responses", {"model": "demo", "input": "Hi"}, "responses"),
        ("/v1/messages", BODY | {"max_tokens": 5}, "messages"),
        ("/v1/messages/count_tokens", BODY, "messages"),
        ("/v1/embeddings", {"model": "demo", "input": "Hi"}, "embeddings"),
        ("/tokenize", {"model": "demo", "prompt": "Hi"}, "tokens"),
        ("/v1/sessions", {"model": "demo"}, "sessions"),
        ("/v1/batches", {"input_file_id": "f", "endpoint": CHAT, "completion_window": "24h"}, "batches"),
    ],
)
async def test_every_route_belongs_to_its_api(
    gateway: Gateway, http: httpx.AsyncClient, path: str, body: dict[str, Any], api: str
) -> None:
    other = "chat" if api != "chat" else "files"
    refused = await http.post(path, json=body, headers=await bearer(gateway, apis=[other]))
    assert told(refused) == (403, "api_not_allowed")
    assert f"{api!r}; it may use: {other}" in refused.json()["error"]["message"]
    allowed = await http.post(path, json=body, headers=await bearer(gateway, apis=[api]))
    assert "api_not_allowed" not in allowed.text or api == "batches"  # its requests are of another API


async def test_other_models_are_hidden_from_every_body(gateway: Gateway, http: httpx.AsyncClient) -> None:
    limited = await bearer(gateway, models=["a/b"])
    bodies = {
        "/v1/messages/count_tokens": BODY,
        "/v1/embeddings": {"model": "demo", "input": "Hi"},
        "/tokenize": {"model": "demo", "prompt": "Hi"},
        "/detokenize": {"model": "gpt", "tokens": [1]},
        "/v1/responses": {"model": "demo", "input": "Hi"},
        "/v1/sessions": {"model": "demo"},
    }
    for path, body in bodies.items():
        assert told(await http.post(path, json=body, headers=limited)) == (404, "model_not_found"), path


async def test_a_batch_of_another_api_is_refused_when_it_is_made(
    gateway: Gateway, http: httpx.AsyncClient
) -> None:
    body = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"}
    refused = await http.post("/v1/batches", json=body, headers=await bearer(gateway, apis=["batches"]))
    assert told(refused) == (403, "api_not_allowed")
    allowed = await http.post(
        "/v1/batches", json=body, headers=await bearer(gateway, apis=["batches", "chat"])
    )
    assert told(allowed) == (404, "file_not_found")


async def test_a_key_that_may_read_reads(gateway: Gateway, http: httpx.AsyncClient) -> None:
    reader, writer = await bearer(gateway, read_only=True), await bearer(gateway)
    made = await http.post("/v1/sessions", json={"model": "demo", "session_id": "talk"}, headers=writer)
    assert made.status_code == 201
    for path in ("/v1/models", "/v1/sessions", "/v1/sessions/talk"):
        assert (await http.get(path, headers=reader)).status_code == 200, path
    changes = [
        ("POST", CHAT, BODY),
        ("POST", "/v1/sessions", {"model": "demo"}),
        ("DELETE", "/v1/sessions/talk", None),
        ("POST", "/v1/responses/resp_1/cancel", None),
        ("DELETE", "/v1/responses/resp_1", None),
        ("DELETE", "/v1/files/file-1", None),
        ("POST", "/v1/batches/batch_1/cancel", None),
        ("GET", "/v1/streams/abc", None),
        ("DELETE", "/v1/streams/abc", None),
    ]
    for method, path, body in changes:
        answer = await http.request(method, path, json=body, headers=reader)
        assert told(answer) == (403, "read_only_key"), path


async def test_a_stream_is_resumed_by_keys_for_its_api_and_model_only(
    gateway: Gateway, http: httpx.AsyncClient
) -> None:
    """What comes of the stream itself is tested where leaders are real."""
    for scopes in ({"apis": ["embeddings"]}, {"models": ["a/b"]}, {}):
        answer = await http.get("/v1/streams/abc", headers=await bearer(gateway, **scopes))
        assert told(answer) == (404, "stream_not_found")


@pytest.mark.parametrize("manage", ["/v1/manage/models", "/v1/load_lora_adapter"])
async def test_admin_keys_manage_and_others_do_not(
    gateway: Gateway, http: httpx.AsyncClient, manage: str
) -> None:
    method = "GET" if manage.endswith("models") else "POST"
    body = None if method == "GET" else {"lora_name": "a", "lora_path": "/a", "base_model_name": "demo"}
    plain = await http.request(method, manage, json=body, headers=await bearer(gateway))
    assert told(plain) == (403, "admin_key_required")
    without = await http.request(method, manage, json=body)
    assert told(without) == (401, "admin_key_required")
    admin = await http.request(method, manage, json=body, headers=await bearer(gateway, admin=True))
    assert admin.status_code not in {401, 403}, admin.text
    reading = await http.request(
        method, manage, json=body, headers=await bearer(gateway, admin=True, read_only=True)
    )
    assert (reading.status_code == 403) == (method == "POST")


async def test_the_name_of_an_unknown_model_is_answered_like_that_of_a_hidden_one(
    gateway: Gateway, http: httpx.AsyncClient
) -> None:
    """A key that may use a model that is away is not told which others there are."""
    limited = await bearer(gateway, models=["gone"])
    answers = [
        await http.post(CHAT, json=BODY | {"model": name}, headers=limited) for name in ("gone", "demo")
    ]
    assert {told(answer) for answer in answers} == {(404, "model_not_found")}
    assert all("a/b" not in answer.text for answer in answers)


async def test_the_api_closes_with_its_first_key_and_stays_closed(http: httpx.AsyncClient) -> None:
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=30) as client:
        accounts = gateway.fleet.accounts
        answer = await client.post(CHAT, json=BODY, headers={"Authorization": "Bearer none"})
        assert answer.json()["choices"][0]["message"]["content"] == "".join(WORDS)
        assert gateway.fleet.requests[-1].party == "address 127.0.0.1"
        key = await accounts.add_key("ada")
        await accounts.require_keys()
        assert told(await client.post(CHAT, json=BODY)) == (401, "missing_api_key")
        assert (await client.post(CHAT, json=BODY, headers=of(key))).status_code == 200
        assert (gateway.fleet.requests[-1].tenant, gateway.fleet.requests[-1].party) == ("ada", "")
        await accounts.revoke(key)
        assert told(await client.post(CHAT, json=BODY)) == (401, "missing_api_key")


async def test_a_page_of_another_site_may_bring_a_key_once_keys_are_required(gateway: Gateway) -> None:
    page = {"Origin": "https://chat.example", "Sec-Fetch-Site": "cross-site"}
    async with running_gateway() as other, httpx.AsyncClient(base_url=other.url, timeout=30) as client:
        key = await other.fleet.accounts.add_key("ada", admin=True)
        refused = await client.post(CHAT, json=BODY, headers=page | of(key))
        assert told(refused) == (403, "origin_not_allowed")
        await other.fleet.accounts.require_keys()
        assert (await client.post(CHAT, json=BODY, headers=page | of(key))).status_code == 200


async def test_the_key_goes_with_background_responses(gateway: Gateway, http: httpx.AsyncClient) -> None:
    key = await gateway.fleet.accounts.add_key("ada")
    body = {"model": "stuck", "input": "Hi", "background": True}
    gateway.fleet.requests.clear()
    begun = await http.post("/v1/responses", json=body, headers=of(key))
    assert begun.json()["status"] in {"queued", "in_progress"}
    await gateway.fleet.wait_requests(1)
    request = gateway.fleet.requests[0]
    assert request.key_id == key.key_id
    await gateway.fleet.accounts.revoke(key, end_streams=True)
    await gateway.fleet.cancel_of(request.request_id).wait()
    other = await bearer(gateway)
    shown = json.loads((await http.get(f"/v1/responses/{begun.json()['id']}", headers=other)).text)
    assert shown["status"] in {"cancelled", "failed"}
