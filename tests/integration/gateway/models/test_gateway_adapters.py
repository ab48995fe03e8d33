"""Adapters at the gateway: loaded and unloaded by vLLM's calls, listed, and asked for by their names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from shared.errors import InvalidRequest
from shared.messages import LoadAdapterCall, ModelCard, UnloadAdapterCall
from tests.kits.adapters.host import AdapterHost
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.model_host import state_of
from tests.kits.waiting import until

LOAD, UNLOAD, MODELS = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/models"
ADMIN = {"Authorization": "Bearer adm-11111111"}


@asynccontextmanager
async def serving(
    *models: str, **settings: Any
) -> AsyncIterator[tuple[Gateway, AdapterHost, httpx.AsyncClient]]:
    """A gateway whose fleet serves these models, and keeps adapters of them."""
    async with (
        running_gateway(**settings) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        cards = [ModelCard(name=name, context_length=2048, created_s=5, fingerprint="f1") for name in models]
        gateway.fleet.cards[:] = cards
        await gateway.fleet.no_adapters.unsubscribe()
        yield gateway, await AdapterHost(gateway.fleet.bus, *models).start(), http


async def ids(http: httpx.AsyncClient) -> list[str]:
    return [one["id"] for one in (await http.get(MODELS)).json()["data"]]


async def await_ids(http: httpx.AsyncClient, *expected: str) -> None:
    async def as_expected() -> bool:
        return await ids(http) == list(expected)

    await until(as_expected)


def error_of(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


async def test_an_adapter_is_loaded_listed_and_unloaded_as_with_vllm() -> None:
    async with serving("demo") as (_, host, http):
        body = {"lora_name": "fr", "lora_path": "/secret/place/fr-v1"}
        loaded = await http.post(LOAD, json=body)
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'fr' added successfully.")
        assert loaded.headers["content-type"].startswith("text/plain")
        assert host.asked == [LoadAdapterCall(base="demo", name="fr", source="/secret/place/fr-v1")]
        await await_ids(http, "demo", "demo:fr")
        shown = (await http.get(f"{MODELS}/demo:fr")).json()
        base = (await http.get(f"{MODELS}/demo")).json()
        assert shown == base | {
            "id": "demo:fr", "display_name": "demo:fr", "root": "fr-v1", "parent": "demo", "rank": 8,
            "created": 11, "created_at": "1970-01-01T00:00:11Z", "fingerprint": f"f1+{'a' * 32}",
        }  # fmt: skip
        assert "parent" not in base
        assert (await http.get(f"{MODELS}/fr")).json() == shown
        assert "secret" not in (await http.get(MODELS)).text

        assert (await http.post(LOAD, json=body)).status_code == 200, "the same content again"
        host.content = "b"
        assert error_of(await http.post(LOAD, json=body), 400) == (
            "The lora adapter 'fr' has already been loaded. If you want to load the adapter in place, set "
            "'load_inplace' to True."
        )
        assert (await http.post(LOAD, json=body | {"load_inplace": True})).status_code == 200

        gone = await http.post(UNLOAD, json={"lora_name": "fr"})
        assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'fr' removed successfully.")
        assert host.asked[-1] == UnloadAdapterCall(base="demo", name="fr")
        await await_ids(http, "demo")
        again = await http.post(UNLOAD, json={"lora_name": "fr"})
        assert error_of(again, 404) == "The lora adapter 'fr' cannot be found."


async def test_what_is_wrong_is_a_400_that_names_the_field() -> None:
    async with serving("demo") as (_, host, http):
        for body, param in (
            ({"lora_name": "fr"}, "lora_path"),
            ({"lora_path": "/x"}, "lora_name"),
            ({"lora_name": "a b", "lora_path": "/x"}, "lora_name"),
            ({"lora_name": "../x", "lora_path": "/x"}, "lora_name"),
            ({"lora_name": "fr", "lora_path": ""}, "lora_path"),
            ({"lora_name": "fr", "lora_path": "/x", "tenant": "a b"}, "tenant"),
        ):
            answer = await http.post(LOAD, json=body)
            error_of(answer, 400)
            assert answer.json()["error"]["param"] == param, body
        host.fails = InvalidRequest("/x holds pickled weights (adapter_model.bin)", param="source")
        answer = await http.post(LOAD, json={"lora_name": "fr", "lora_path": "/x"})
        assert answer.json()["error"]["param"] == "lora_path"
        assert error_of(answer, 400) == "/x holds pickled weights (adapter_model.bin)"


async def test_with_several_models_the_base_has_to_be_named() -> None:
    async with serving("demo", "slow") as (_, host, http):
        body = {"lora_name": "fr", "lora_path": "/x"}
        assert "they are demo, slow" in error_of(await http.post(LOAD, json=body), 400)
        for base in ("demo", "slow"):
            assert (await http.post(LOAD, json=body | {"base_model_name": base})).status_code == 200
        none = await http.post(LOAD, json=body | {"base_model_name": "none"})
        error_of(none, 404)
        await await_ids(http, "demo", "slow", "demo:fr", "slow:fr")
        assert "base_model_name" in error_of(await http.post(UNLOAD, json={"lora_name": "fr"}), 400)
        for name, more in (("fr", {"base_model_name": "demo"}), ("slow:fr", {})):
            assert (await http.post(UNLOAD, json={"lora_name": name} | more)).status_code == 200
        assert [one.base for one in host.asked[-2:]] == ["demo", "slow"]


async def test_only_operators_manage_adapters() -> None:
    keys = {"api_keys": "key-22222222:acme", "admin_keys": "adm-11111111"}
    async with serving("demo", **keys) as (_, host, http):
        body = {"lora_name": "fr", "lora_path": "/x", "tenant": "acme"}
        for headers in ({}, {"Authorization": "Bearer key-22222222"}):
            for path in (LOAD, UNLOAD):
                error_of(await http.post(path, json=body, headers=headers), 401)
        assert host.asked == []
        assert (await http.post(LOAD, json=body, headers=ADMIN)).status_code == 200
        assert host.asked == [LoadAdapterCall(base="demo", name="fr", source="/x", tenant="acme")]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("demo:fr", "demo:fr"),
        ("fr", "demo:fr"),
        ("gpt:fr", "demo:fr"),
        ("french", "demo:fr"),
        ("gpt", "demo"),
        ("other", "demo"),
        ("slow", "slow"),  # a model of that name comes before an adapter
        ("both", "demo"),  # of two bases: a pattern is asked then
    ],
)
async def test_the_names_of_an_adapter(asked: str, meant: str) -> None:
    aliases = "gpt=demo,french=demo:fr,*=demo"
    async with serving("demo", "cut", "slow", model_aliases=aliases) as (gateway, host, http):
        for base, name in (("demo", "fr"), ("cut", "slow"), ("demo", "both"), ("cut", "both")):
            await host.put(base, name)
        await await_ids(http, "demo", "cut", "slow", "demo:both", "demo:fr", "cut:both", "cut:slow")
        body = {"model": asked, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        if asked == "slow":
            body["stream"] = True
            async with http.stream("POST", "/v1/chat/completions", json=body):
                await gateway.fleet.wait_requests(1)
        else:
            answer = await http.post("/v1/chat/completions", json=body)
            if meant == "demo":
                assert answer.json()["model"] == meant
        assert gateway.fleet.requests[0].model == meant


async def test_tokens_of_an_adapter_are_those_of_its_base() -> None:
    async with serving("demo", model_aliases="french=demo:fr") as (_, host, http):
        await host.put("demo", "fr")
        await await_ids(http, "demo", "demo:fr")
        asked = {name: {"model": name, "prompt": "Hello"} for name in ("demo", "demo:fr", "fr", "french")}
        answers = {name: await http.post("/tokenize", json=body) for name, body in asked.items()}
        reasons = {name: (one.status_code, one.headers.get("x-ryz-reason")) for name, one in answers.items()}
        # this fleet has no leader that tokenizes: its models are known, and no adapter is taken for a model
        assert len(set(reasons.values())) == 1
        assert "'demo'" in answers["fr"].json()["error"]["message"]


async def test_an_adapter_of_a_model_that_is_asleep_is_listed_with_its_state() -> None:
    async with serving("demo") as (gateway, host, http):
        gateway.fleet.offered[:] = [state_of("second", "asleep")]
        await host.put("second", "fr")
        await await_ids(http, "demo", "second", "second:fr")
        shown = (await http.get(f"{MODELS}/second:fr")).json()
        assert (shown["parent"], shown["status"]["phase"]) == ("second", "asleep")
        (managed,) = (await http.get("/v1/manage/models")).json()["data"]
        assert [(one["id"], one["source"], one["rank"]) for one in managed["adapters"]] == [
            ("second:fr", "/adapters/x", 8)
        ]


async def test_a_thousand_adapters_make_one_series() -> None:
    async with serving("demo") as (gateway, host, http):
        names = [f"a{number}" for number in range(40)]
        for name in names:
            await host.put("demo", name)
        await await_ids(http, "demo", *(f"demo:{name}" for name in sorted(names)))
        for name in names:
            body = {"model": f"demo:{name}", "prompt": "x", "max_tokens": 2}
            await http.post("/v1/completions", json=body)
        labels = {
            sample.labels["model"]
            for family in gateway.service.registry.collect()
            for sample in family.samples
            if "model" in sample.labels
        }
        assert labels <= {"demo", "other"}
        assert (
            gateway.metric(
                "ryz_slo_requests_total", model="demo:a1", tenant="default", priority="normal", outcome="ok"
            )
            == 0
        )
