"""Servers are told apart by what they serve, and their sizes are read."""

import json
from typing import Any

import pytest

from services.worker.guests.remote.options import RemoteOptions
from services.worker.guests.remote.probing.server_facts import ServerFacts, read_facts
from services.worker.guests.remote.wire.remote_http import RemoteHttp, Reply


class Described(RemoteHttp):
    """A server that has these resources and no others."""

    def __init__(self, options: RemoteOptions, resources: dict[str, Any]) -> None:
        super().__init__(options)
        self._resources = resources

    async def get(self, path: str, timeout_s: float) -> Reply:
        found = self._resources.get(path)
        body = b"" if found is None else json.dumps(found).encode()
        return Reply(404 if found is None else 200, {}, body)


async def facts_of(resources: dict[str, Any]) -> ServerFacts:
    options = RemoteOptions(url="http://server", model="m")
    http = Described(options, resources)
    try:
        return await read_facts(http, options)
    finally:
        await http.close()


def models(owner: str, **more: object) -> dict[str, Any]:
    return {"data": [{"id": "m", "owned_by": owner, **more}, {"id": "other", "parent": "another"}]}


@pytest.mark.parametrize(
    ("resources", "name", "sizes", "health"),
    [
        (
            {
                "/v1/models": models("sglang", max_model_len=4096),
                "/get_server_info": {
                    "version": "0.9",
                    "context_length": 2048,
                    "max_running_requests": 64,
                    "max_total_num_tokens": 99_000,
                },
            },
            "SGLang 0.9",
            (2048, 64, 99_000),
            "/health",
        ),
        (
            {
                "/v1/models": models("m"),
                "/info": {"version": "3.1", "max_total_tokens": 8192, "max_concurrent_requests": 128},
            },
            "TGI 3.1",
            (8192, 128, 0),
            "/health",
        ),
        (
            {"/v1/models": models("library"), "/api/version": {"version": "0.40"}},
            "Ollama 0.40",
            (0, 0, 0),
            "/api/version",
        ),
        (
            {
                "/v1/models": models("me"),
                "/openapi.json": {"info": {"title": "\U0001f999 llama.cpp Python API", "version": "0.3.36"}},
            },
            "llama-cpp-python 0.3.36",
            (0, 1, 0),
            "/openapi.json",
        ),
        ({"/v1/models": models("organization_owner")}, "OpenAI-compatible server", (0, 0, 0), "/v1/models"),
        ({}, "OpenAI-compatible server", (0, 0, 0), "/v1/models"),
        (
            {"/v1/models": {"data": "none"}, "/version": [], "/props": {"total_slots": "four"}},
            "OpenAI-compatible server",
            (0, 0, 0),
            "/v1/models",
        ),
    ],
)
async def test_kinds_are_told_apart(
    resources: dict[str, Any], name: str, sizes: tuple[int, int, int], health: str
) -> None:
    facts = await facts_of(resources)
    assert (facts.name, facts.health_path) == (name, health)
    assert (facts.context_length, facts.max_running, facts.kv_tokens) == sizes
    assert facts.adapters == frozenset()
