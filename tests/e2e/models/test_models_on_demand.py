"""One stack whose memory is enough for two of its three models: they are loaded, evicted and put to sleep."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from benchmarks.models.make_model import make_model
from benchmarks.models.shapes import SHAPES
from shared.telemetry.logs.schema import problems_of
from tests.kits.e2e.models_stack import models_stack
from tests.kits.e2e.stack import Stack, ryz
from tests.kits.e2e.turns import post_turn, said
from tests.kits.models.file_server import FileServer
from tests.kits.models.hub_server import add_model, cdn_path, demo_files
from tests.kits.waiting import PATIENCE_S, wait_for

FIRST, SECOND, NOISE, VANISHES = "first", "second", "noise", "vanishes"
MEMORY_GIB = "2.3"  # 1.4 GiB for groups, each of which counts for about 580 MiB
MODELS = """
[[models]]
name = "first"
source = "demo"

[[models]]
name = "second"
source = "demo"
load = "demand"

[[models]]
name = "noise"
source = "random"
load = "demand"
sleep_after_s = 3
groups = 2

[[models]]
name = "vanishes"
source = "lost"
load = "demand"
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[FileServer]:
    with FileServer() as server:
        add_model(server, "someone/some-model", demo_files())
        yield server


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, hub: FileServer) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("on-demand")
    make_model(folder / "random", SHAPES["tiny"])
    shutil.copytree(folder / "random", folder / "lost")
    env = {"RYZ_MODELS_DIR": str(folder / "models"), "HF_ENDPOINT": hub.url}
    with models_stack(folder, MODELS, "--memory", MEMORY_GIB, env=env) as stack:
        yield stack


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.state.url, timeout=90) as client:
        yield client


def ask(http: httpx.Client, model: str, text: str = "Hi", session: str = "", **fields: Any) -> httpx.Response:
    return post_turn(http, text, session, model=model, **fields)


def phases(http: httpx.Client) -> dict[str, str]:
    listed = http.get("/v1/manage/models").json()["data"]
    return {one["id"]: one["status"]["phase"] for one in listed}


def await_phase(http: httpx.Client, model: str, phase: str) -> None:
    wait_for(lambda: phases(http).get(model) == phase, f"{model} is {phase}")


def is_gone(http: httpx.Client, model: str) -> bool:
    return model not in phases(http)


def manage(http: httpx.Client, model: str, action: str, **body: int) -> httpx.Response:
    return http.post(f"/v1/manage/models/{model}/{action}?wait=60", json=body or None)


def test_models_that_are_not_loaded_are_listed_and_are_no_404(stack: Stack, http: httpx.Client) -> None:
    listed = {one["id"]: one for one in http.get("/v1/models").json()["data"]}
    assert set(listed) == {FIRST, SECOND, NOISE, VANISHES}
    assert http.get(f"/v1/models/{SECOND}").json()["status"]["phase"] == "asleep"
    assert phases(http)[FIRST] == "ready"
    assert {0 <= time.time() - one["created"] < 3600 for one in listed.values()} == {True}
    shown = ryz("models", "status", cwd=stack.folder)
    assert shown.returncode == 0, shown.stderr
    assert SECOND in shown.stdout
    assert "asleep" in shown.stdout


def test_a_request_waits_until_its_model_is_loaded(stack: Stack, http: httpx.Client) -> None:
    answer = ask(http, SECOND, "My name is Ada.", "on-demand-1")
    assert said(answer)
    assert phases(http)[SECOND] == "ready"
    shown = ryz("explain", answer.json()["id"], "--json", cwd=stack.folder).stdout
    spans = json.loads(shown)["requests"][0]["spans"]
    (wait,) = [span for span in spans if span["what"] == "waited for its model"]
    assert wait["data"]["asked"] > 2
    whats = [span["what"] for span in spans]
    assert whats.count("to the router") == 1
    assert "choice of a group" in whats  # a copy that was sent again meanwhile has its own
    assert "choice of a group: none" not in whats


def test_an_idle_model_makes_room_and_its_sessions_go_on_later(http: httpx.Client) -> None:
    said(ask(http, FIRST, "My name is Bo.", "on-demand-2"))
    said(ask(http, SECOND, "My name is Cy.", "on-demand-3"))
    said(ask(http, NOISE))
    found = phases(http)
    assert found[NOISE] == "ready"
    assert sorted([found[FIRST], found[SECOND]]) != ["ready", "ready"]
    assert said(ask(http, FIRST, "What is my name?", "on-demand-2")) == "Your name is Bo."
    assert said(ask(http, SECOND, "What is my name?", "on-demand-3")) == "Your name is Cy."


def test_a_model_sleeps_when_nobody_asks_for_it(stack: Stack, http: httpx.Client) -> None:
    said(ask(http, NOISE))
    await_phase(http, NOISE, "asleep")
    shown = ryz("status", cwd=stack.folder).stdout
    assert "the next request for noise wakes it" in shown
    assert "ended by itself" not in shown
    said(ask(http, NOISE))


def test_streams_end_before_their_models_make_room(http: httpx.Client) -> None:
    """Two models stream without a pause, and a third one is asked for: it has its turn, no stream breaks."""
    for model in (FIRST, SECOND):
        said(ask(http, model))
    wanted_until, ends = time.monotonic() + 12, list[str]()

    def keep_busy(model: str) -> None:
        with httpx.Client(base_url=http.base_url, timeout=90) as client:
            while time.monotonic() < wanted_until:
                ends.append(stream_end(client, model))

    threads = [threading.Thread(target=keep_busy, args=(model,)) for model in (FIRST, SECOND) for _ in "ab"]
    for thread in threads:
        thread.start()
    time.sleep(1)
    assert said(ask(http, NOISE))
    for thread in threads:
        thread.join()
    assert set(ends) == {"length"}


def stream_end(http: httpx.Client, model: str) -> str:
    """The reason for which a stream ends."""
    body = {
        "model": model,
        "max_tokens": 64,
        "ignore_eos": True,
        "stream": True,
        "messages": [{"role": "user", "content": "Count."}],
    }
    reason = ""
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                reason = event["choices"][0].get("finish_reason") or reason
    return reason


def test_operators_load_and_unload_models(stack: Stack, http: httpx.Client) -> None:
    assert manage(http, NOISE, "unload").status_code == 200
    refused = ask(http, NOISE)
    assert (refused.status_code, refused.headers["x-ryz-reason"]) == (503, "model_unloaded")
    assert "ryz models load noise" in refused.json()["error"]["message"]
    loaded = ryz("models", "load", NOISE, cwd=stack.folder)
    assert loaded.returncode == 0, loaded.stderr
    said(ask(http, NOISE))
    assert manage(http, NOISE, "sleep").json()["status"]["phase"] == "asleep"
    too_many = manage(http, NOISE, "scale", groups=3)
    assert too_many.status_code == 409
    assert "room for 2 groups" in too_many.json()["error"]["message"]


def test_a_model_that_cannot_be_loaded_says_why_and_the_others_go_on(
    stack: Stack, http: httpx.Client
) -> None:
    shutil.rmtree(stack.folder / "lost")
    refused = ask(http, VANISHES)
    assert (refused.status_code, refused.headers["x-ryz-reason"]) == (503, "model_failed")
    lost = f"{stack.folder / 'lost'} is gone; put it back, and `ryz models load vanishes` tries again at once"
    assert refused.json()["error"]["message"].startswith(f"model 'vanishes' could not be loaded: {lost}")
    assert http.get(f"/v1/models/{VANISHES}").json()["status"]["why"] == lost
    shown = json.loads(ryz("models", "status", "--json", cwd=stack.folder).stdout)["data"]
    assert {one["name"]: one["why"] for one in shown}[VANISHES] == lost
    assert said(ask(http, FIRST))
    assert phases(http)[VANISHES] == "failed"


def test_a_model_is_added_and_removed_while_the_stack_runs(stack: Stack, http: httpx.Client) -> None:
    assert ask(http, "extra").status_code == 404
    added = http.put("/v1/manage/models/extra", json={"source": str(stack.folder / "random"), "threads": 1})
    assert added.status_code == 202, added.text
    await_phase(http, "extra", "asleep")
    said(ask(http, "extra"))
    twice = http.put("/v1/manage/models/extra", json={"source": "demo"})
    assert (twice.status_code, twice.headers["x-ryz-reason"]) == (409, "refused_by_host")
    wrong = http.put("/v1/manage/models/wrong", json={"source": "demo", "grups": 2})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "grups")
    assert "did you mean `groups`?" in wrong.json()["error"]["message"]
    unknown = http.put("/v1/manage/models/wrong", json={"source": "/no/such/model"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "source")
    empty = stack.folder / "empty"
    empty.mkdir()
    assert http.put("/v1/manage/models/missing", json={"source": str(empty)}).status_code == 202
    await_phase(http, "missing", "failed")
    assert "holds no model" in http.get("/v1/models/missing").json()["status"]["why"]
    for model in ("extra", "missing"):
        assert http.delete(f"/v1/manage/models/{model}").status_code == 202
        wait_for(partial(is_gone, http, model), f"{model} is gone")
    assert ask(http, "missing").status_code == 404


def test_a_fetch_that_breaks_off_fails_its_model_alone_and_a_load_goes_on_with_it(
    stack: Stack, hub: FileServer, http: httpx.Client
) -> None:
    weights, fetched = cdn_path("model.safetensors"), stack.folder / "models" / "hf" / "someone"
    hub.cut_at[weights], hub.always_cut = 3_000_000, {weights}
    added = http.put("/v1/manage/models/fetched", json={"source": "hf:someone/some-model", "threads": 1})
    assert added.status_code == 202, added.text
    await_phase(http, "fetched", "failed")
    refused = ask(http, "fetched")
    assert (refused.status_code, refused.headers["x-ryz-reason"]) == (503, "model_failed")
    sentence = refused.json()["error"]["message"]
    assert "hf:someone/some-model broke off after 3.0 MB" in sentence
    assert "`ryz models pull hf:someone/some-model` goes on from there" in sentence
    assert said(ask(http, FIRST))
    assert not (fetched / "some-model").exists(), "half a model is none"
    hub.cut_at.clear()
    loaded = ryz("models", "load", "fetched", cwd=stack.folder)
    assert loaded.returncode == 0, loaded.stderr
    assert said(ask(http, "fetched"))
    assert hub.ranges(weights)[-1] == "bytes=3000000-"
    assert not (fetched / ".some-model.part").exists()
    assert http.delete("/v1/manage/models/fetched").status_code == 202
    wait_for(partial(is_gone, http, "fetched"), "the fetched model is gone")


def test_all_decisions_are_in_the_logs(stack: Stack) -> None:
    supervisor = stack.output.read_text()
    assert "for model second (demand)" in supervisor
    assert "(idle)" in supervisor
    assert "(evicted)" in supervisor
    logs = stack.state_dir.logs.glob("router*.log")
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    assert [problems for line in lines if (problems := problems_of(line))] == []
    actions = {line["action"] for line in lines if line["event"] == "model action"}
    assert actions - {"resize"} == {"load", "stop"}


def test_a_group_that_dies_is_started_again(stack: Stack, http: httpx.Client) -> None:
    said(ask(http, FIRST))
    name = next(one.name for one in stack.state.services if one.model == FIRST)
    os.kill(stack.pid_of(name), signal.SIGKILL)
    assert said(ask(http, FIRST))


def test_a_frozen_supervisor_delays_a_load_and_loses_no_request(stack: Stack, http: httpx.Client) -> None:
    await_phase(http, NOISE, "asleep")
    os.kill(stack.state.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: NOISE not in phases(http), "routers have given the host up", PATIENCE_S)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(ask, http, NOISE)
            time.sleep(1)
            os.kill(stack.state.pid, signal.SIGCONT)
            assert said(waits.result())
    finally:
        os.kill(stack.state.pid, signal.SIGCONT)
