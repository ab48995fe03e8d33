"""Sessions on whole stacks: they are created, used, shown and exported, and continue on another stack."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.kits.e2e.stack import Stack, ryz
from tests.kits.e2e.turns import post_turn, said
from tests.kits.waiting import wait_for
from training.words import HELD_OUT_NAMES

NAME = HELD_OUT_NAMES[0]
SESSION = "tea/with-a-friend"


@pytest.fixture(scope="module")
def other_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A second deployment of the demo model, with one rank instead of two and without sessions."""
    options = ("--groups", "1", "--tensor-parallel", "1")
    with Stack(tmp_path_factory.mktemp("other-stack"), *options) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


@pytest.fixture(scope="module")
def keyed_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with two tenants."""
    keys = {"RYZ_API_KEYS": "key-of-ada:ada,key-of-bob:bob"}
    with Stack(tmp_path_factory.mktemp("keyed-stack"), "--engine", "null", env=keys) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


def sessions(stack: Stack, *args: str) -> Any:
    """The JSON output of a `ryz sessions` command."""
    result = ryz("sessions", *args, "--json", cwd=stack.folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def say(stack: Stack, text: str, session_id: str = SESSION) -> httpx.Response:
    """One greedy turn."""
    with httpx.Client(base_url=stack.state.url, timeout=30) as http:
        answer = post_turn(http, text, max_tokens=40, session_id=session_id)
    assert answer.status_code == 200, answer.text
    return answer


def test_a_conversation_goes_on_in_another_deployment(torch_stack: Stack, other_stack: Stack) -> None:
    made = sessions(torch_stack, "create", SESSION, "--pin", "g1")
    assert (made["session_id"], made["pinned_group"], made["turns"]) == (SESSION, "g1", 0)
    first = say(torch_stack, f"My name is {NAME}.")
    assert NAME in said(first)
    assert first.headers["x-ryz-group"] == "g1"
    assert first.headers["x-ryz-route"]
    assert said(say(torch_stack, "What is my name?")).strip() == f"Your name is {NAME}."

    shown = sessions(torch_stack, "show", SESSION, "--messages")
    assert (shown["turns"], shown["num_messages"], shown["last_group"]) == (2, 4, "g1")
    assert shown["tokens"] > 0
    assert shown["home"] in {"g0", "g1"}
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"] * 2
    assert SESSION in [one["session_id"] for one in sessions(torch_stack, "list", "--all")["data"]]

    file = other_stack.folder / "tea.json"
    sessions(torch_stack, "export", SESSION, "--output", str(file))
    brought = sessions(other_stack, "import", str(file))
    assert (brought["turns"], brought["num_messages"], brought["tokens"]) == (2, 4, shown["tokens"])
    assert said(say(other_stack, "What is my name?")).strip() == f"Your name is {NAME}."
    assert sessions(other_stack, "show", SESSION)["turns"] == 3

    again = ryz("sessions", "import", str(file), cwd=other_stack.folder)
    assert again.returncode == 4
    assert "already" in again.stderr
    sessions(other_stack, "import", str(file), "--replace")
    assert sessions(other_stack, "show", SESSION)["turns"] == 2
    sessions(other_stack, "delete", SESSION, "--yes")
    assert ryz("sessions", "show", SESSION, cwd=other_stack.folder).returncode == 3
    sessions(other_stack, "import", str(file))  # the earlier deletion must not block the import
    assert said(say(other_stack, "What is my name?")).strip() == f"Your name is {NAME}."


def test_a_moved_session_answers_from_its_new_group(torch_stack: Stack) -> None:
    def of_store() -> int:
        return int(sessions(torch_stack, "show", "moved")["blocks"])

    sessions(torch_stack, "create", "moved", "--pin", "g0")
    for text in (f"My name is {NAME}.", "Tell me about Python.", "Tell me about Python."):
        say(torch_stack, text, "moved")
    wait_for(lambda: of_store() > 0, "the session's KV is in the store")
    held = {one["group"]: one["cached_tokens"] for one in sessions(torch_stack, "show", "moved")["groups"]}
    assert held["g0"] > 0
    stuck = ryz("sessions", "move", "moved", "g1", cwd=torch_stack.folder)
    assert stuck.returncode == 4
    assert "pinned to 'g0'" in stuck.stderr
    sessions(torch_stack, "unpin", "moved")
    moved = sessions(torch_stack, "move", "moved", "g1")
    assert moved["fetched_tokens"] > 0
    assert moved["cached_tokens"] >= moved["fetched_tokens"]
    shown = sessions(torch_stack, "show", "moved")
    assert shown["last_group"] == "g1"
    assert {one["group"] for one in shown["groups"]} == {"g0", "g1"}
    answer = say(torch_stack, "What is my name?", "moved")
    assert said(answer).strip() == f"Your name is {NAME}."
    group, route, kv = (answer.headers.get(f"x-ryz-{name}") for name in ("group", "route", "kv"))
    assert group == "g1"
    assert route in {"last_group", "preferred"}
    assert kv in {"warm", None}  # left out if the group accepted before it had looked, as on a busy machine
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_pin_to_nowhere_and_a_file_of_another_model(torch_stack: Stack, null_stack: Stack) -> None:
    sessions(torch_stack, "create", "refused")
    nowhere = ryz("sessions", "pin", "refused", "g9", cwd=torch_stack.folder)
    assert nowhere.returncode == 1
    assert "g0 (ready), g1 (ready)" in nowhere.stderr
    assert sessions(torch_stack, "show", "refused")["pinned_group"] is None
    file = null_stack.folder / "refused.json"
    sessions(torch_stack, "export", "refused", "--output", str(file))
    other = ryz("sessions", "import", str(file), cwd=null_stack.folder)
    assert other.returncode == 4
    assert "same weights" in other.stderr
    file.write_bytes(file.read_bytes().replace(b'"demo"', b'"memo"'))
    altered = ryz("sessions", "import", str(file), cwd=torch_stack.folder)
    assert altered.returncode == 1
    assert "altered" in altered.stderr
    assert ryz("sessions", "show", "refused", cwd=null_stack.folder).returncode == 3


def test_what_a_tenant_says_stays_with_it(keyed_stack: Stack) -> None:
    ada, bob = (
        httpx.Client(base_url=keyed_stack.state.url, headers={"Authorization": f"Bearer key-of-{name}"})
        for name in ("ada", "bob")
    )
    with ada, bob:
        path = f"/v1/sessions/{quote(SESSION, safe='')}"
        body = {"session_id": SESSION, "messages": [{"role": "user", "content": "secret"}]}
        assert ada.post("/v1/sessions", json=body).status_code == 201
        assert bob.get("/v1/sessions").json()["data"] == []
        for answer in (
            bob.get(path),
            bob.get(f"{path}/export"),
            bob.post(f"{path}/pin", json={"group": "g0"}),
            bob.post(f"{path}/move", json={"group": "g0"}),
            bob.delete(path),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "session_not_found")
        mine = bob.post("/v1/sessions", json=body | {"messages": []})
        assert (mine.status_code, mine.json()["tenant"]) == (201, "bob")
        assert bob.delete(path).status_code == 204
        assert ada.get(path, params={"messages": "true"}).json()["messages"][0]["content"] == "secret"
