"""The refusal of a model that no group serves names the alias by which it was asked for."""

import json

import httpx
import pytest
from tritonclient.utils import InferenceServerException
from websockets.asyncio.client import connect

from tests.integration.gateway.test_gateway_left_out import BODIES, RESPONSES
from tests.kits.gateway.gateway import running_gateway
from tests.kits.gateway.grpc_client import texts, triton_client
from tests.kits.servers import free_port


@pytest.mark.asyncio
async def test_an_alias_of_a_model_that_no_group_serves_is_named_by_all_apis() -> None:
    means = "'bad' means 'nonesuch' here, which no group serves; "
    served = "models that are served: demo, a/b"
    async with (
        running_gateway(model_aliases="bad=nonesuch", grpc_port=free_port()) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
        triton_client(gateway) as client,
    ):
        for path, body in BODIES.items():
            for stream in ({}, {"stream": True}):
                answer = await http.post(path, json={"model": "bad", **body, **stream})
                assert answer.status_code == 404, answer.text
                assert answer.json()["error"]["message"].startswith(means)
            other = await http.post(path, json={"model": "nonesuch", **body})
            assert "means" not in other.json()["error"]["message"]
        listed = await http.get("/v1/models/bad")
        assert (listed.status_code, listed.json()["error"]["message"]) == (404, f"{means}{served}")
        made = await http.post("/v1/sessions", json={"model": "bad"})
        assert (made.status_code, made.json()["error"]["message"]) == (404, f"{means}{served}")
        counted = await http.post("/tokenize", json={"model": "bad", "prompt": "x"})
        assert counted.status_code == 404
        assert counted.json()["error"]["message"].startswith(means)
        with pytest.raises(InferenceServerException, match="'bad' means 'nonesuch' here"):
            await client.infer("bad", [texts("text_input", "Hi")])
        async with connect(f"ws://127.0.0.1:{gateway.port}{RESPONSES}") as socket:
            await socket.send(json.dumps({"type": "response.create", "model": "bad", "input": "x"}))
            assert json.loads(await socket.recv())["error"]["message"].startswith(means)
