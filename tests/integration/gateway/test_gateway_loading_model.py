"""A model that loads beside a ready one is known: 503 with a time to come back, in every API, and no 404."""

import httpx
import pytest
from tritonclient.utils import InferenceServerException

from tests.kits.gateway.gateway import running_gateway
from tests.kits.gateway.grpc_client import triton_client
from tests.kits.servers import free_port


@pytest.mark.asyncio
async def test_a_model_that_loads_beside_a_ready_one_is_known() -> None:
    async with (
        running_gateway(grpc_port=free_port()) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
        triton_client(gateway) as client,
    ):
        gateway.fleet.away.append("second")
        new = {"session_id": "s", "model": "second"}
        for answer in (await http.get("/v1/models/second"), await http.post("/v1/sessions", json=new)):
            assert (answer.status_code, answer.headers["x-ryz-reason"]) == (503, "no_group")
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["message"].startswith("no group of model 'second' is ready now")
        assert not await client.is_model_ready("second")
        with pytest.raises(InferenceServerException, match="'second' is ready now") as refused:
            await client.get_model_metadata("second")
        assert refused.value.status() == "StatusCode.UNAVAILABLE"
        listed = (await http.get("/v1/models")).json()["data"]
        assert "second" not in {one["id"] for one in listed}
        for path in ("/v1/models/none", "/v1/models/second2"):
            assert (await http.get(path)).status_code == 404


@pytest.mark.asyncio
async def test_an_alias_by_pattern_takes_no_request_from_a_model_that_loads() -> None:
    async with (
        running_gateway(model_aliases="*=demo") as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        gateway.fleet.away.append("second")
        assert (await http.get("/v1/models/third")).json()["id"] == "demo"
        assert (await http.get("/v1/models/second")).status_code == 503
