"""One stack with two different models: the demo model in two groups, and in one a random model with other
tokens, a shorter context and another precision.
"""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.models.make_model import make_model
from benchmarks.models.shapes import SHAPES
from cli.models.commands import users_of
from cli.stack.model_dir import demo_model
from tests.kits.e2e.batches import run_chats
from tests.kits.e2e.models_stack import models_stack
from tests.kits.e2e.stack import Stack, ryz
from tests.kits.e2e.turns import post_turn
from tests.kits.waiting import wait_for

DEMO, NOISE = "demo", "noise"
GROUPS = {DEMO: {"g0", "g1"}, NOISE: {"g2"}}
MODELS = """
[[models]]
source = "demo"
aliases = ["gpt-4o"]
groups = 2
kv_cache_tokens = 8192

[[models]]
name = "noise"
source = "random"
aliases = ["second", "noise-*"]
precision = "fp32"
kv_cache_tokens = 4096
sampling = { temperature = 0.0, top_k = 7 }
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("two-models")
    make_model(folder / "random", SHAPES["tiny"])
    with models_stack(folder, MODELS) as stack:
        yield stack


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.state.url, timeout=60) as client:
        yield client


def say(http: httpx.Client, model: str, text: str, session: str = "", **fields: Any) -> dict[str, Any]:
    """One turn, and its whole answer."""
    answer = post_turn(http, text, session, model=model, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def said(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def group_of(http: httpx.Client, session: str) -> str:
    return str(http.get(f"/v1/sessions/{session}").json()["last_group"])


def test_the_stack_says_what_it_serves(stack: Stack, http: httpx.Client) -> None:
    listed = {one["id"]: one for one in http.get("/v1/models").json()["data"]}
    assert {name: one["aliases"] for name, one in listed.items()} == {
        DEMO: ["gpt-4o"],
        NOISE: ["second", "noise-*"],
    }
    assert listed[DEMO]["max_model_len"] > listed[NOISE]["max_model_len"]
    assert listed[DEMO]["fingerprint"] != listed[NOISE]["fingerprint"]
    assert listed[NOISE]["default_sampling"]["top_k"] == 7
    for alias, name in (("gpt-4o", DEMO), ("second", NOISE), ("noise-2", NOISE)):
        assert http.get(f"/v1/models/{alias}").json()["id"] == name
    started = stack.output.read_text()
    assert f"model {DEMO}, 2 groups of 1 rank; model {NOISE}, 1 group of 1 rank, broker" in started
    bodies = [line for line in started.splitlines() if line.startswith("curl -N")]
    assert [f'"model": "{name}"' in body for name, body in zip(GROUPS, bodies, strict=True)] == [True, True]
    assert stack.state.models == [DEMO, NOISE]
    services = {one.name: one.model for one in stack.state.services if one.model}
    assert services == {"worker-g0": DEMO, "worker-g1": DEMO, "worker-g2": NOISE}
    shown = ryz("status", cwd=stack.folder).stdout
    assert f"models {DEMO}, {NOISE}" in shown
    status = stack.whole_status()
    assert {one["group"]: one["model"] for one in status["groups"]} == {"g0": DEMO, "g1": DEMO, "g2": NOISE}


def test_a_model_that_is_not_served_is_a_404_that_lists_both(http: httpx.Client) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/tokenize", {"prompt": "Hi"}),
    ):
        answer = http.post(path, json={"model": "third", **body})
        assert answer.status_code == 404, path
        assert "demo, noise" in answer.json()["error"]["message"], path
    for answer in (http.get("/v1/models/third"), http.post("/v1/sessions", json={"model": "third"})):
        assert answer.status_code == 404
        assert "demo, noise" in answer.json()["error"]["message"]


def test_an_alias_reaches_its_own_model_and_the_answer_has_the_real_name(http: httpx.Client) -> None:
    for alias, name in (("gpt-4o", DEMO), ("second", NOISE), ("noise-of-any-kind", NOISE)):
        assert say(http, alias, "Hello")["model"] == name
    made = http.post("/v1/sessions", json={"session_id": "of-an-alias", "model": "second"})
    assert (made.status_code, made.json()["model"]) == (201, NOISE)


def test_sessions_stay_on_the_groups_of_their_model(http: httpx.Client) -> None:
    """Also when so many run that turns overflow, while the group of the other model has nothing to do."""
    names = [f"stay-{number}" for number in range(24)]
    for model, groups in GROUPS.items():

        def run(session: str, model: str = model) -> str:
            """Two turns, the second one long; the group that had it."""
            say(http, model, "My name is Ada.", f"{session}-{model}")
            answer = say(http, model, "And yours?", f"{session}-{model}", max_tokens=100, ignore_eos=True)
            assert answer["model"] == model
            return group_of(http, f"{session}-{model}")

        with ThreadPoolExecutor(len(names)) as pool:
            assert set(pool.map(run, names)) == groups, "of their model, and of no other"
        shown = http.get(f"/v1/sessions/{names[0]}-{model}").json()
        assert shown["home"] in groups
        assert shown["model"] == model


def test_a_session_is_pinned_to_a_group_of_its_model_only(http: httpx.Client) -> None:
    say(http, DEMO, "My name is Ada.", "pinned")
    refused = http.post("/v1/sessions/pinned/pin", json={"group": "g2"})
    assert refused.status_code == 400, refused.text
    assert "g2" in refused.json()["error"]["message"]
    assert http.post("/v1/sessions/pinned/pin", json={"group": "g1"}).status_code == 200
    assert say(http, NOISE, "And now?", "pinned", max_tokens=4)["model"] == NOISE
    assert group_of(http, "pinned") == "g2", "the group of the pin has another model"


def test_a_session_that_changes_its_model_keeps_its_text_and_begins_its_kv_anew(http: httpx.Client) -> None:
    session = "wanderer"
    say(http, DEMO, "Hello, my name is Ada.", session)  # as no other session begins
    for _ in range(6):  # while its group is busy, the other one computes a turn anew
        demo = say(http, DEMO, "I like tea.", session)
        if cached(demo) > 0:
            break
    assert cached(demo) > 0
    turns = demo["session"]["turns"]
    noise = say(http, NOISE, "What is my name?", session, max_tokens=4)
    assert (noise["model"], cached(noise), noise["session"]["turns"]) == (NOISE, 0, turns + 1)
    assert noise["usage"]["prompt_tokens"] > demo["usage"]["prompt_tokens"], "the whole conversation"
    record = http.get(f"/v1/sessions/{session}?messages=true").json()
    assert record["model"] == NOISE
    assert record["num_messages"] == 2 * (turns + 1)
    back = say(http, DEMO, "What is my name?", session)
    assert said(back) == "Your name is Ada."
    assert 0 < cached(back) <= demo["usage"]["total_tokens"], "of its own blocks, not of those between"


def test_two_models_never_share_a_block(http: httpx.Client) -> None:
    """The same words are other tokens for each, and other blocks even where token ids are equal."""
    ids = list(range(20, 84))
    for model in GROUPS:
        fresh = http.post("/v1/completions", json={"model": model, "prompt": ids, "max_tokens": 1}).json()
        assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, model
    again = [
        http.post("/v1/completions", json={"model": model, "prompt": ids, "max_tokens": 1}).json()
        for model in GROUPS
        for _ in range(2)
    ]
    assert all(one["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for one in again[2:])


def test_embeddings_and_tokens_are_of_the_model_that_was_asked(http: httpx.Client) -> None:
    lengths, tokens = {}, {}
    for model in GROUPS:
        answer = http.post("/v1/embeddings", json={"model": model, "input": "Hello"}).json()
        lengths[model] = len(answer["data"][0]["embedding"])
        tokens[model] = http.post("/tokenize", json={"model": model, "prompt": "Hello there"}).json()[
            "tokens"
        ]
    assert lengths[NOISE] == SHAPES["tiny"].dim != lengths[DEMO]
    assert tokens[DEMO] != tokens[NOISE]


def test_one_batch_may_ask_both(http: httpx.Client) -> None:
    models = (DEMO, "second", "third")
    batch = run_chats(http, {f"{model}-{number}": model for number in range(4) for model in models})
    assert batch["request_counts"] == {"total": 12, "completed": 8, "failed": 4}
    output = http.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
    found = {line["custom_id"]: line["response"]["body"]["model"] for line in map(json.loads, output)}
    assert {name.partition("-")[0]: model for name, model in found.items()} == {DEMO: DEMO, "second": NOISE}
    errors = http.get(f"/v1/files/{batch['error_file_id']}/content").text
    assert errors.count("models that are served: demo, noise") == 4


def test_metrics_tell_the_models_apart(http: httpx.Client) -> None:
    say(http, DEMO, "Hi", stream=False)
    say(http, "second", "Hi")
    scraped = http.get("/metrics").text
    for model in GROUPS:
        assert f'gen_ai_request_model="{model}"' in scraped
    assert 'gen_ai_request_model="second"' not in scraped


def test_each_process_shows_the_settings_of_its_own_model(stack: Stack) -> None:
    """`ryz models remove` asks the processes which model they serve."""
    shown = {
        name: psutil.Process(stack.pid_of(name)).environ() for name in ("worker-g0", "worker-g1", "worker-g2")
    }
    assert [one["RYZ_GROUP"] for one in shown.values()] == ["g0", "g1", "g2"]
    assert [Path(one["RYZ_MODEL"]).name for one in shown.values()] == ["demo", "demo", "random"]
    pids = {name: stack.pid_of(name) for name in shown}
    of_noise, of_demo = users_of(stack.folder / "random"), users_of(demo_model())
    assert pids["worker-g2"] in of_noise
    assert {pids["worker-g0"], pids["worker-g1"]} <= set(of_demo)
    assert not set(of_noise) & set(of_demo)


@pytest.mark.parametrize(("killed", "served"), [(NOISE, DEMO), (DEMO, NOISE)])
def test_the_death_of_a_leader_does_not_touch_the_streams_of_the_other_model(
    stack: Stack, http: httpx.Client, killed: str, served: str
) -> None:
    body = {
        "model": served,
        "max_tokens": 400,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_event_ids": True},
        "messages": [{"role": "user", "content": "Tell me about the sea."}],
    }
    whole = _text_of(http, body, lambda: None)
    names = [f"worker-{group}" for group in sorted(GROUPS[killed])]
    before = {one.name: (one.pid, one.restarts) for one in stack.state.services}

    def kill() -> None:
        for name in names:
            os.kill(before[name][0], signal.SIGKILL)

    assert _text_of(http, body, kill) == whole
    others = [f"worker-{group}" for group in GROUPS[served]]
    now = {one.name: (one.pid, one.restarts) for one in stack.state.services}
    assert {name: now[name] for name in others} == {name: before[name] for name in others}

    def is_back() -> bool:
        states = {one.name: one for one in stack.state.services}
        return all(states[name].ready and states[name].pid != before[name][0] for name in names)

    wait_for(is_back, f"the groups of {killed} are ready again")
    assert say(http, killed, "Hello")["model"] == killed
    stack.remember()


def _text_of(http: httpx.Client, body: dict[str, Any], at_first_token: Any) -> str:
    """The text of a stream, in which one attempt gave all tokens."""
    text = ""
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            delta = json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            if delta and not text:
                at_first_token()
            text += delta
    return text
