"""`truncation: "auto"` on a whole leader: a conversation that is too long is answered from its newer part."""

from typing import Any

import httpx

from tests.kits.gateway.with_leader import gateway_with_leader


async def test_a_conversation_that_is_too_long_loses_its_oldest_turns() -> None:
    items: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for number in range(40):
        items += [
            {"role": "user", "content": f"question {number} " * 4},
            {"role": "assistant", "content": f"answer {number} " * 4},
        ]
    items.append({"role": "user", "content": "And now?"})
    body = {"model": "demo", "input": items, "store": False, "max_output_tokens": 8}
    async with (
        gateway_with_leader() as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        refused = await http.post("/v1/responses", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        served = await http.post("/v1/responses", json=body | {"truncation": "auto"})
        assert (served.status_code, served.json()["truncation"]) == (200, "auto"), served.text
        assert 500 < served.json()["usage"]["input_tokens"] <= 2040
        short = await http.post("/v1/responses", json=body | {"truncation": "auto", "input": "Hi"})
        assert short.json()["usage"]["input_tokens"] < 100
        # the next turn begins at the same message, so it finds the KV of the one before
        items += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why?"}]
        again = await http.post("/v1/responses", json=body | {"truncation": "auto", "input": items})
        usage = again.json()["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] > 0.9 * usage["input_tokens"]
        huge = [{"role": "user", "content": "x" * 5000}]
        refused = await http.post("/v1/responses", json=body | {"truncation": "auto", "input": huge})
        assert refused.json()["error"]["code"] == "context_length_exceeded"
