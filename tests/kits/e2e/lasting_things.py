"""One of each thing that may outlast a restart, made and looked up through the doors that users have."""

import json
from typing import Any

import httpx

from tests.kits.e2e.stack import Stack, ryz
from tests.kits.waiting import wait_for

SESSIONS, DELETED = ("tea", "coffee"), "water"
USED = 7  # requests of all that is made here
KEYED, KEY = "keyed", "call-17"


class LastingThings:
    """What a user stored in a stack; `present` says which of it is there.

    Args:
        stack: A running stack of the null engine.
    """

    def __init__(self, stack: Stack) -> None:
        self._ids: dict[str, str] = {}
        with self._client(stack) as client:
            for name in (*SESSIONS, DELETED, KEYED):
                answer = self._chat(client, name)
            self._keyed = answer.json()
            self._chat(client, KEYED, key="")
            self._pin_and_delete(client)
            answer = client.post(
                "/v1/responses", json={"model": "demo", "input": "hi", "max_output_tokens": 4}
            )
            self._ids["response"] = answer.raise_for_status().json()["id"]
            self._ids["file"], self._ids["batch"] = self._run_batch(client)
            wait_for(lambda: self._used(client) >= USED, "usage is added up")
            self._texts = {name: self._messages(client, name) for name in SESSIONS}
        self._folder = stack.folder
        self._ryz("tenants", "create", "lasting", "--running", "3")
        self._ryz("keys", "create", "--tenant", "lasting", "--label", "lasting", "--expires", "30d")
        self._ryz("keys", "require", "off")  # the calls below have no key
        self._ryz("tenants", "price", "demo", "--prompt", "0.15", "--currency", "EUR")
        self._ryz("keys", "create", "--bus-user", "billing", "--tenant", "lasting")
        self._accounts = self._lists()

    def present(self, stack: Stack) -> set[str]:
        """Returns the kinds that are there, equal to what was stored."""
        with self._client(stack) as client:
            checks = {
                "sessions": all(self._messages(client, name) == self._texts[name] for name in SESSIONS),
                "pins": self._get(client, f"/v1/sessions/{SESSIONS[0]}").get("pinned_group") == "g0",
                "usage": self._used(client) >= USED,
                "responses": "id" in self._get(client, f"/v1/responses/{self._ids['response']}"),
                "idempotency keys of sessions": self._repeats(client),
                "files": "id" in self._get(client, f"/v1/files/{self._ids['file']}"),
                "batches": self._get(client, f"/v1/batches/{self._ids['batch']}").get("status")
                == "completed",
            }
        now = self._lists()
        checks |= {kind: now[kind] == made for kind, made in self._accounts.items()}
        checks["bus users"] = '"billing"' in now["keys"]
        return {kind for kind, there in checks.items() if there}

    def _lists(self) -> dict[str, str]:
        """What commands list of tenants and keys; the API is open, so that an admin's key is not needed."""
        return {
            "tenants": self._ryz("tenants", "list", "--json"),
            "keys": self._ryz("keys", "list", "--json"),
            "prices": self._ryz("tenants", "price", "--json"),
            "audit log": self._ryz("tenants", "audit", "--json"),
        }

    def _ryz(self, *words: str) -> str:
        done = ryz(*words, cwd=self._folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_deleted(self, stack: Stack) -> bool:
        """Returns whether the deleted session stayed deleted."""
        with self._client(stack) as client:
            return client.get(f"/v1/sessions/{DELETED}").status_code == httpx.codes.NOT_FOUND

    @staticmethod
    def _client(stack: Stack) -> httpx.Client:
        return httpx.Client(base_url=stack.state.url, timeout=30)

    @staticmethod
    def _chat(client: httpx.Client, session: str, key: str = KEY) -> httpx.Response:
        headers = {"X-Session-Id": session} | ({"Idempotency-Key": key} if key and session == KEYED else {})
        body = {
            "model": "demo",
            "max_tokens": 4,
            "messages": [{"role": "user", "content": f"about {session}"}],
        }
        answer = client.post("/v1/chat/completions", json=body, headers=headers)
        return answer.raise_for_status()

    def _repeats(self, client: httpx.Client) -> bool:
        """Sends the keyed call again; returns whether it counts as the same turn, with the same answer."""
        again = self._chat(client, KEYED).json()
        turns = self._get(client, f"/v1/sessions/{KEYED}")["turns"]
        return bool(again["choices"] == self._keyed["choices"]) and turns == 2

    @staticmethod
    def _pin_and_delete(client: httpx.Client) -> None:
        client.post(f"/v1/sessions/{SESSIONS[0]}/pin", json={"group": "g0"}).raise_for_status()
        client.delete(f"/v1/sessions/{DELETED}").raise_for_status()

    @staticmethod
    def _get(client: httpx.Client, path: str) -> dict[str, Any]:
        found: dict[str, Any] = client.get(path).json()
        return found

    def _used(self, client: httpx.Client) -> int:
        return sum(one["requests"] for one in self._get(client, "/v1/usage").get("data", []))

    def _messages(self, client: httpx.Client, session: str) -> Any:
        return self._get(client, f"/v1/sessions/{session}?include=messages").get("messages", session)

    def _run_batch(self, client: httpx.Client) -> tuple[str, str]:
        body = {"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
        line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
        sent = client.post(
            "/v1/files", files={"file": ("in.jsonl", json.dumps(line))}, data={"purpose": "batch"}
        )
        file_id = str(sent.raise_for_status().json()["id"])
        wanted = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch_id = str(client.post("/v1/batches", json=wanted).raise_for_status().json()["id"])
        wait_for(
            lambda: self._get(client, f"/v1/batches/{batch_id}")["status"] == "completed",
            "the batch ends",
            30,
        )
        return file_id, batch_id
