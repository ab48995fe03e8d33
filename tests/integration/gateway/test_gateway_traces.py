"""One trace from the gateway to the steps of the engine, with a whole leader behind the gateway."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from shared import subjects
from shared.telemetry.spans.facts import SpanFacts
from shared.telemetry.spans.trace_ids import trace_id_of_request
from tests.kits.gateway.gateway import Gateway
from tests.kits.gateway.with_leader import gateway_with_leader
from tests.kits.memory_bus import MemoryBus
from tests.kits.spans import KeptSpans, covered
from tests.kits.waiting import until
from tests.kits.worker.leader import null_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "The password is swordfish"
KEY = "a-key-that-is-long-enough"
CHAT = {"model": "demo", "max_tokens": 40, "messages": [{"role": "user", "content": SECRET}]}
SPANS = KeptSpans()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    leader = {"engine": null_engine(delay_s=0.003)}
    settings = {"trace_ratio": 1.0, "explain_requests": 0, "api_keys": f"{KEY}:acme"}
    async with gateway_with_leader(leader=leader, spans=SPANS, **settings) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    SPANS.made.clear()
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=30) as client:
        yield client
    await gateway.wait_idle()


def named(name: str) -> list[SpanFacts]:
    return [span for span in SPANS.made if span.name == name]


async def root_of(trace_id: str) -> SpanFacts:
    """The gateway's span, which is exported after the answer has been sent."""

    def roots() -> list[SpanFacts]:
        return [span for span in SPANS.made if span.trace_id == trace_id and "http.route" in span.attributes]

    await until(lambda: bool(roots()))
    return roots()[-1]


def flat(value: Any) -> str:
    return json.dumps(value, default=str)


async def test_a_stream_is_one_tree_that_covers_its_time_and_tells_no_text(http: httpx.AsyncClient) -> None:
    parent = f"00-{TRACE}-{CALLER}-01"
    answer = await http.post(
        "/v1/chat/completions", json=CHAT | {"stream": True}, headers={"traceparent": parent}
    )
    assert answer.status_code == 200
    root = await root_of(TRACE)
    assert {span.trace_id for span in SPANS.made} == {TRACE}
    assert (root.parent_id, root.name, root.kind) == (CALLER, "chat demo", "server")
    assert root.attributes["gen_ai.operation.name"] == "chat"
    assert root.attributes["gen_ai.usage.output_tokens"] == 40
    assert root.attributes["http.response.status_code"] == 200
    by_id = {span.span_id: span for span in SPANS.made}
    assert len(by_id) == len(SPANS.made)
    assert all(span.parent_id in by_id for span in SPANS.made if span is not root)
    (attempt,), (lead,) = named("attempt 0"), named("generate demo")
    assert (attempt.parent_id, lead.parent_id) == (root.span_id, attempt.span_id)
    assert lead.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert {"template and tokens", "queue", "prefill", "decode", "end of the turn"} <= {
        span.name for span in SPANS.made if span.parent_id == lead.span_id
    }
    (decode,) = named("decode")
    steps = named("step")
    assert len(steps) >= 40
    assert sum(span.parent_id == decode.span_id for span in steps) >= 38
    assert all(span.attributes["ryz.sequences"] == 1 for span in steps)
    above = {span.parent_id for span in SPANS.made}
    leaves = [span for span in SPANS.made if span.span_id not in above or span.name == "decode"]
    assert covered(root.begin_ns, root.end_ns, [(span.begin_ns, span.end_ns) for span in leaves]) >= 0.98
    reported = flat([[span.name, span.attributes, span.error] for span in SPANS.made])
    assert SECRET not in reported
    assert KEY not in reported


async def test_a_caller_decides_that_nothing_is_recorded(http: httpx.AsyncClient) -> None:
    unrecorded = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
    answer = await http.post("/v1/chat/completions", json=CHAT, headers=unrecorded)
    assert answer.status_code == 200
    wrong = {"traceparent": f"00-{TRACE}-{CALLER}-01-more"}  # as if there were none
    answer = await http.post("/v1/chat/completions", json=CHAT, headers=wrong)
    assert answer.status_code == 200
    await until(lambda: bool(named("chat demo")))
    (root,) = named("chat demo")
    assert root.parent_id == ""
    assert {span.trace_id for span in SPANS.made} == {trace_id_of_request(_request_id())}


async def test_a_stream_that_is_resumed_goes_on_in_its_trace(http: httpx.AsyncClient) -> None:
    body = CHAT | {"stream": True, "max_tokens": 200}
    async with http.stream(
        "POST", "/v1/chat/completions", json=body, headers={"X-Stream-Grace": "10"}
    ) as answer:
        stream_id = answer.headers["x-stream-id"]
        async for _ in answer.aiter_raw():
            break
    await root_of(trace_id_of_request(stream_id))
    again = await http.get(f"/v1/streams/{stream_id}")
    assert again.text.endswith("data: [DONE]\n\n")
    await until(lambda: len([span for span in SPANS.made if "http.route" in span.attributes]) == 2)
    assert {span.trace_id for span in SPANS.made} == {trace_id_of_request(stream_id)}
    first, second = [span for span in SPANS.made if "http.route" in span.attributes]
    assert (first.attributes["http.route"], second.attributes["http.route"]) == (
        "/v1/chat/completions", "/v1/streams",
    )  # fmt: skip
    assert named("attached")
    assert named("generate demo")


async def test_an_answer_that_is_refused_says_so(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json={"model": "demo"})
    assert answer.status_code == 400
    root = await root_of(trace_id_of_request(_request_id()))
    assert (root.attributes["error.type"], root.error) == ("400", "")
    wrong = await http.post(
        "/v1/chat/completions", json=CHAT, headers={"Authorization": "Bearer " + "x" * 20}
    )
    assert wrong.status_code == 401


def _request_id() -> str:
    (root,) = [span for span in SPANS.made if "http.route" in span.attributes]
    return str(root.attributes["ryz.request_id"])


async def test_requests_over_websockets_are_recorded(http: httpx.AsyncClient, gateway: Gateway) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "traceparent": f"00-{TRACE}-{CALLER}-01"}
    async with connect(f"ws://127.0.0.1:{gateway.port}/v1/realtime", additional_headers=headers) as socket:
        await socket.recv()
        body = CHAT | {"stream": True}
        await socket.send(
            json.dumps({"type": "request", "id": "a", "path": "/v1/chat/completions", "body": body})
        )
        while json.loads(await socket.recv())["type"] != "done":
            pass
    await until(lambda: bool(named("chat demo")) and bool(named("generate demo")))
    assert len({span.trace_id for span in SPANS.made}) == 1


async def test_a_request_over_nats_is_one_trace_that_covers_its_time(
    http: httpx.AsyncClient, gateway: Gateway
) -> None:
    bus = MemoryBus(gateway.broker)
    headers = {"Authorization": f"Bearer {KEY}", "traceparent": f"00-{TRACE}-{CALLER}-01"}
    try:
        answer = await bus.request(
            subjects.complete("demo"), json.dumps(CHAT).encode(), timeout_s=30, headers=headers
        )
    finally:
        await bus.close()
    assert answer.headers["Ryz-Status"] == "200"
    root = await root_of(TRACE)
    await until(lambda: bool(named("generate demo")))
    assert {span.trace_id for span in SPANS.made} == {TRACE}
    assert (root.parent_id, root.name) == (CALLER, "chat demo")
    above = {span.parent_id for span in SPANS.made}
    leaves = [span for span in SPANS.made if span.span_id not in above or span.name == "decode"]
    assert covered(root.begin_ns, root.end_ns, [(span.begin_ns, span.end_ns) for span in leaves]) >= 0.98


async def test_what_the_gateway_refuses_counts_among_requests(
    http: httpx.AsyncClient, gateway: Gateway
) -> None:
    def refused(tenant: str) -> float:
        labels = {"model": "other", "tenant": tenant, "priority": "normal", "outcome": "refused"}
        return gateway.metric("ryz_slo_requests_total", **labels)

    before = refused("acme"), refused("other")
    assert (await http.post("/v1/chat/completions", json={"model": "demo"})).status_code == 400
    wrong = {"Authorization": "Bearer " + "x" * 20}
    assert (await http.post("/v1/chat/completions", json=CHAT, headers=wrong)).status_code == 401
    assert (await http.get("/v1/streams/nonsense")).status_code in {400, 404}  # generates nothing
    assert (refused("acme"), refused("other")) == (before[0] + 1, before[1] + 1)
    assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert refused("acme") == before[0] + 1


async def test_a_stream_that_fails_after_it_began_says_so(http: httpx.AsyncClient) -> None:
    body = CHAT | {"stream": True, "max_tokens": 2000}
    answer = await http.post("/v1/chat/completions", json=body, headers={"X-Request-Timeout": "0.3"})
    assert (answer.status_code, "deadline_exceeded" in answer.text) == (200, True)
    await until(lambda: bool(named("chat demo")))
    (root,) = named("chat demo")
    assert (root.error, root.attributes["error.type"]) == ("deadline_exceeded", "deadline_exceeded")
