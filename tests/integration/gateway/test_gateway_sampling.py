"""What a caller does not say about sampling, no API says for it: the leader has the model's defaults."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from shared.messages import Sampling
from shared.messages.generate import DEFAULTED
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.grpc_client import texts, triton_client
from tests.kits.servers import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": HELLO}),
    "chat, read in full": ("/v1/chat/completions", {"messages": HELLO, "logprobs": True}),
    "text": ("/v1/completions", {"prompt": "Hello"}),
    "messages": ("/v1/messages", {"messages": HELLO, "max_tokens": 5}),
    "responses": ("/v1/responses", {"input": "Hello"}),
}
GIVEN = {"temperature": 1.0, "top_p": 1.0}  # OpenAI's defaults, as a wish


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with running_gateway(grpc_port=free_port()) as running:
        yield running


def unsaid(sampling: Sampling) -> set[str]:
    return {name for name in DEFAULTED if getattr(sampling, name) is None}


@pytest.mark.parametrize("kind", BODIES)
async def test_over_http(gateway: Gateway, kind: str) -> None:
    path, fields = BODIES[kind]
    async with httpx.AsyncClient(base_url=gateway.url, timeout=10) as http:
        for given in ({}, GIVEN):
            answer = await http.post(path, json={"model": "demo", **fields, **given})
            assert answer.status_code == 200, answer.text
            sampling = gateway.fleet.requests[-1].sampling
            assert unsaid(sampling) == set(DEFAULTED) - set(given)
            assert {name: getattr(sampling, name) for name in given} == given


async def test_over_grpc(gateway: Gateway) -> None:
    async with triton_client(gateway) as client:
        for given in ({}, GIVEN):
            parameters = [texts("sampling_parameters", json.dumps(given))] if given else []
            await client.infer("demo", [texts("messages", json.dumps(HELLO)), *parameters])
            assert unsaid(gateway.fleet.requests[-1].sampling) == set(DEFAULTED) - set(given)
