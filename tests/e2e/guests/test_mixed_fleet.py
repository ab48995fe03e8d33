"""One model, served by an own group and by a guest that `ryz worker` has joined: streams, refusals, sessions.

Both answer with the same endless text, of which a token depends on its position alone. So an answer is whole
if it is a piece of that text, whoever wrote which part of it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import httpx
import pytest

from cli.stack.model_dir import demo_model
from services.worker.null.engine import TEXT
from tests.kits.e2e.stack import ROOT, RYZ, Stack
from tests.kits.guests.servers import program
from tests.kits.waiting import PATIENCE_S, wait_for

GUEST = "remote-guest"
SOLO = "solo"  # a model that only the guest serves
ANSWER_TOKENS = 40
# whether it is called is the model's choice, which no guest's grammar leaves open
STRICT_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "strict": True,
        "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    },
}


class Fleet(NamedTuple):
    """The stack, its API, and the server behind the guest's groups."""

    stack: Stack
    api: httpx.Client
    server: httpx.Client

    def groups(self) -> dict[str, dict[str, Any]]:
        """The groups by name, as `ryz status` has them."""
        return {str(group["group"]): group for group in self.stack.status()["groups"]}

    def are_ready(self) -> bool:
        """Whether all three groups take requests."""
        states = [group["state"] for group in self.groups().values()]
        return states.count("ready") == 3

    def misbehave(self, name: str, after: int = 3) -> None:
        """Has the server break off each stream after so many events; `plain`: no more."""
        self.server.post("/behave", json={"name": name, "after": after}).raise_for_status()


@contextmanager
def guest_group(fleet: Stack, url: str, model: str, group: str) -> Iterator["subprocess.Popen[str]"]:
    options = ("--remote", url, "--model", model, "--remote-model", "demo", "--tokenizer", "demo")
    command = [*RYZ, "worker", *options, "--group", group, "--state-dir", str(fleet.state_dir.path)]
    with program(*command, log=fleet.folder / f"{group}.err") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"Ready: group {group} serves {model} by vLLM 0.99.0"), line
        assert "cannot: " in line
        yield process


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """An own group of the null engine, and two groups in front of one scripted server."""
    folder = tmp_path_factory.mktemp("mixed-fleet")
    options = ("--engine", "null", "--groups", "1", "--model", str(demo_model()), "--model-name", "demo")
    settings = {"RYZ_NULL_STEP_DELAY_MS": "10", "RYZ_ROUTER_POLICY": "round_robin"}
    server = [sys.executable, "-m", "tests.kits.guests.false_server", "--style", "vllm", "--text", TEXT]
    server += ["--tokenizer", str(demo_model() / "tokenizer.json"), "--end-id", "1"]
    with Stack(folder, *options, env=settings, calm=False) as stack:
        stack.await_ready()
        with program(*server, log=folder / "server.err") as false_server:
            assert false_server.stdout is not None
            url = f"http://127.0.0.1:{int(false_server.stdout.readline())}"
            with (
                guest_group(stack, url, "demo", GUEST),
                guest_group(stack, url, SOLO, f"{GUEST}-solo"),
                httpx.Client(base_url=stack.state.url, timeout=PATIENCE_S) as api,
                httpx.Client(base_url=url) as told,
            ):
                found = Fleet(stack, api, told)
                wait_for(found.are_ready, "all groups are ready")
                yield found
        assert stack.end() == 0


@pytest.fixture(autouse=True)
def _well_behaved(fleet: Fleet) -> Iterator[None]:
    yield
    fleet.misbehave("plain")
    wait_for(fleet.are_ready, "all groups are ready again")


def ask(fleet: Fleet, text: str, **fields: Any) -> httpx.Response:
    body = {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": ANSWER_TOKENS}
    return fleet.api.post("/v1/chat/completions", json={**body, **fields})


class Streamed(NamedTuple):
    text: str
    resumed: str
    group: str


def stream(fleet: Fleet, text: str, kill: int = 0, **fields: Any) -> Streamed:
    """The whole of a streamed answer; a process to kill is killed after its first text."""
    body = {"model": "demo", "stream": True, "max_tokens": ANSWER_TOKENS, **fields}
    body["messages"] = [{"role": "user", "content": text}]
    found, resumed, ended = "", "", False
    with fleet.api.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                ended = ended or line == "data: [DONE]"
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            resumed = chunk.get("resumed", resumed)
            found += chunk["choices"][0]["delta"].get("content", "") if chunk["choices"] else ""
            if found and kill:
                os.kill(kill, signal.SIGKILL)
                kill = 0
        assert ended
        return Streamed(found, resumed, answer.headers["x-ryz-group"])


def check_whole(text: str) -> None:
    """The answer is a piece of the endless text: nothing is missing, twice, or garbled."""
    assert len(text) > ANSWER_TOKENS
    assert text.strip() in TEXT * (len(text) // len(TEXT) + 2)


def test_status_shows_what_the_guest_is_and_can(fleet: Fleet) -> None:
    guest = fleet.groups()[GUEST]["guest"]
    assert guest["name"] == "vLLM 0.99.0"
    assert {"continuation", "token_ids_in", "token_ids_out"} <= set(guest["can"])
    assert "grammar" in guest["can"]
    assert {"adapters", "embeddings"} <= set(guest["lacks"])
    shown = subprocess.run(
        [*RYZ, "status", "--state-dir", str(fleet.stack.state_dir.path)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    ).stdout  # fmt: skip
    words = " ".join(shown.split())  # lines may be wrapped
    assert f"{GUEST}: guest vLLM 0.99.0; can choice, continuation, " in words


@pytest.mark.parametrize("behaviour", ["cut", "cut_in_event", "reset", "error_event"])
def test_streams_that_a_guest_breaks_off_go_on_without_a_lost_character(fleet: Fleet, behaviour: str) -> None:
    fleet.misbehave(behaviour, after=7)
    answers = [stream(fleet, f"{behaviour} {number}") for number in range(8)]
    for answer in answers:
        check_whole(answer.text)
    begun_by_guest = [answer for answer in answers if answer.group == GUEST]
    assert begun_by_guest, "round robin gives some to the guest"
    assert {answer.resumed for answer in begun_by_guest} == {"text"}
    assert {answer.resumed for answer in answers if answer.group != GUEST} <= {""}


def test_streams_of_an_own_group_that_is_killed_go_on_at_the_guest(fleet: Fleet) -> None:
    killed = None
    for number in range(8):
        own = fleet.groups()["g0"]
        answer = stream(fleet, f"kill {number}", kill=0 if killed else own["leader_pid"])
        check_whole(answer.text)
        if answer.group == "g0" and answer.resumed:
            killed = answer
            break
        wait_for(fleet.are_ready, "the own group is back")
    assert killed is not None
    assert killed.resumed == "text"


def test_what_the_guest_lacks_is_served_by_the_own_group(fleet: Fleet) -> None:
    for number in range(6):
        answer = ask(fleet, f"call {number}", tools=[STRICT_TOOL])
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ryz-group"] == "g0"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"tools": [STRICT_TOOL]}, "tools"),
    ],
)
def test_without_another_group_it_is_refused_by_name(
    fleet: Fleet, fields: dict[str, Any], param: str
) -> None:
    answer = ask(fleet, "hello", model=SOLO, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], answer.headers["x-ryz-reason"]) == (param, "guest_cannot")
    assert "vLLM 0.99.0" in error["message"]
    assert ask(fleet, "hello", model=SOLO).status_code == 200


def test_a_form_is_followed_by_the_guest(fleet: Fleet) -> None:
    answer = ask(fleet, "form", model=SOLO, response_format={"type": "json_object"})
    assert answer.status_code == 200, answer.text
    assert isinstance(json.loads(answer.json()["choices"][0]["message"]["content"]), dict)


def load_adapter(fleet: Fleet, base: str, name: str) -> "subprocess.CompletedProcess[str]":
    command = [*RYZ, "models", "load-adapter", base, name, str(demo_model())]
    return subprocess.run(
        [*command, "--state-dir", str(fleet.stack.state_dir.path)],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_adapters_are_read_and_computed_by_own_groups(fleet: Fleet) -> None:
    for number in range(4):
        loaded = load_adapter(fleet, "demo", f"a{number}")
        assert loaded.returncode == 0, loaded.stderr
        answer = ask(fleet, "hello", model=f"demo:a{number}")
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ryz-group"] == "g0"


def test_a_model_that_guests_alone_serve_takes_no_adapter(fleet: Fleet) -> None:
    refused = load_adapter(fleet, SOLO, "a")
    assert refused.returncode != 0
    assert f"{SOLO!r}" in refused.stderr
    assert "guests" in refused.stderr


def test_a_session_keeps_its_context_in_both_kinds_of_groups(fleet: Fleet) -> None:
    groups, sizes = set[str](), list[int]()
    for number in range(8):
        answer = fleet.api.post(
            "/v1/chat/completions",
            headers={"X-Session-Id": "both"},
            json={
                "model": "demo",
                "messages": [{"role": "user", "content": f"turn {number}"}],
                "max_tokens": 8,
            },
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["session"]["turns"] == number + 1
        groups.add(answer.headers["x-ryz-group"])
        sizes.append(body["usage"]["prompt_tokens"])
    assert groups == {"g0", GUEST}
    grown = [later - earlier for earlier, later in pairwise(sizes)]
    assert min(grown) > 8, "each prompt has the turns before it"
    assert max(grown) - min(grown) <= 2


def test_a_group_that_is_ended_by_a_signal_drains(fleet: Fleet) -> None:
    url = str(fleet.server.base_url)
    with guest_group(fleet.stack, url, "short", f"{GUEST}-short") as group:
        assert ask(fleet, "hello", model="short").status_code == 200
        group.send_signal(signal.SIGINT)
        assert group.wait(PATIENCE_S) == 0
    assert ask(fleet, "hello", model="short").status_code in {404, 503}


def test_a_server_that_is_not_there_is_one_sentence(fleet: Fleet) -> None:
    for remote, name, said in (
        ("http://127.0.0.1:9", "demo", "the server at 127.0.0.1:9"),
        (str(fleet.server.base_url), "nothing", "has no model 'nothing'; it has 'demo'"),
    ):
        shown = subprocess.run(
            [*RYZ, "worker", "--remote", remote, "--model", "x", "--remote-model", name, "--tokenizer",
             "demo", "--group", f"away-{name}", "--state-dir", str(fleet.stack.state_dir.path)],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert shown.returncode != 0
        assert said in shown.stderr, shown.stderr
