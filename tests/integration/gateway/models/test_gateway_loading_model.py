"""A model that loads: beside a ready one it is known, in every API, and no 404; requests wait for it."""

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


@pytest.mark.asyncio
async def test_a_request_outlasts_the_wait_for_routers_while_its_model_loads() -> None:
    chat = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
    async with running_gateway(wait_s=0.2) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        gateway.fleet.waking = 12  # about 0.8 s
        answer = await http.post("/v1/chat/completions", json=chat)
        assert answer.status_code == 200
        assert gateway.fleet.waking == 0
        gateway.fleet.waking = 1_000_000
        late = await http.post("/v1/chat/completions", json=chat, headers={"X-Request-Timeout": "1.5"})
        assert (late.status_code, late.headers["x-ryz-reason"]) == (503, "waking")
        assert late.headers["retry-after"] == "1"


@pytest.mark.asyncio
async def test_a_long_wait_is_one_moment_of_the_request_and_hides_none_that_follows() -> None:
    chat = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
    async with running_gateway() as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        gateway.fleet.waking = 70  # more than a timeline has moments
        answer = await http.post("/v1/chat/completions", json=chat, headers={"X-Request-Id": "waited-1"})
        assert answer.status_code == 200
        timelines = gateway.service.timelines.find("waited-1", 10)
        moments = [
            moment for timeline in timelines for moment in timeline.moments if "attempt" in moment.data
        ]
        names = [one.name for one in moments]
        assert names[0] == "published"
        assert names[-3:] == ["accepted", "first frame", "last frame"]
        # one that was not answered in time is published again, and what follows is a moment of its own
        assert names.count("offered again") <= names.count("published") < 30
        offers = [one.data for one in moments if one.name == "offered again"][-1]
        assert offers["reason"] == "waking"
        assert int(offers["asked"]) > 30
