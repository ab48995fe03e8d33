"""A stream is resumed with a key that is for its API and its model; another one leaves it as it is."""

from typing import Any

import httpx
import pytest

from tests.kits.gateway.with_leader import gateway_with_leader

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": True,
    "stream_options": {"include_event_ids": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("scopes", "refused"),
    [
        ({"apis": ["embeddings"]}, (403, "api_not_allowed")),
        ({"models": ["another"]}, (404, "stream_not_found")),
        ({"read_only": True}, (403, "read_only_key")),
    ],
)
async def test_a_key_for_something_else_does_not_get_it(
    scopes: dict[str, Any], refused: tuple[int, str]
) -> None:
    async with gateway_with_leader() as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        accounts = gateway.fleet.accounts
        await accounts.require_keys()
        own, limited = await accounts.add_key("ada"), await accounts.add_key("ada", **scopes)
        headers = {"Authorization": f"Bearer {own.text}", "X-Stream-Grace": "30"}
        begun = await http.post(CHAT, json=BODY, headers=headers)
        path = f"/v1/streams/{begun.headers['x-stream-id']}"
        wrong = await http.get(path, headers={"Authorization": f"Bearer {limited.text}"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == refused
        again = await http.get(path, headers={"Authorization": f"Bearer {own.text}"})
        assert (again.status_code, again.text) == (200, begun.text)
