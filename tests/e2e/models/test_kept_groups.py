"""A stack of groups that compute nothing: what `min_groups` keeps, and adapters of a base that sleeps."""

import os
import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.kits.e2e.models_stack import models_stack
from tests.kits.e2e.stack import Stack, ryz
from tests.kits.e2e.turns import post_turn, said
from tests.kits.waiting import wait_for

KEPT, LATE, SLEEP_S = "kept", "late", 2
MODELS = f"""
[[models]]
name = "{KEPT}"
source = "demo"
load = "demand"
groups = 2
min_groups = 1
sleep_after_s = {SLEEP_S}

[[models]]
name = "{LATE}"
source = "demo"
load = "demand"
sleep_after_s = {SLEEP_S}
adapters = [{{ name = "fr", source = "fr" }}, {{ name = "large", source = "large" }}]
"""
MEMORY = 2**20  # for adapters


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("kept-groups")
    (folder / "fr").mkdir()
    (folder / "fr" / "adapter_config.json").write_text("{}")
    (folder / "large").mkdir()
    (folder / "large" / "adapter_config.json").write_bytes(b" " * (MEMORY + 1))
    with models_stack(folder, MODELS, "--engine", "null", env={"RYZ_ADAPTER_BYTES": str(MEMORY)}) as stack:
        yield stack


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.state.url, timeout=60) as client:
        yield client


def groups_of(http: httpx.Client, model: str) -> tuple[str, int, int]:
    """The phase of a model, its groups that are ready, and all of them."""
    status = http.get(f"/v1/models/{model}").json()["status"]
    return status["phase"], status["groups"]["ready"], status["groups"]["all"]


def leaders(stack: Stack) -> list[str]:
    return [one.name for one in stack.state.services if one.model == KEPT and one.ready]


def test_an_adapter_of_a_model_that_was_never_loaded_loads_it(http: httpx.Client) -> None:
    """It is known when the stack is ready, by its whole name and by its own."""
    assert groups_of(http, LATE) == ("asleep", 0, 0)
    assert f"{LATE}:fr" in {one["id"] for one in http.get("/v1/models").json()["data"]}
    answer = post_turn(http, "Hi", model="fr", max_tokens=4)
    assert said(answer)
    assert answer.json()["model"] == f"{LATE}:fr"
    assert groups_of(http, LATE) == ("ready", 1, 1)


def test_an_adapter_that_no_group_has_memory_for_is_left_out(stack: Stack, http: httpx.Client) -> None:
    assert f"{LATE}:large" not in {one["id"] for one in http.get("/v1/models").json()["data"]}
    assert (
        f"adapter {LATE}:large is left out: it takes 1,048,577 bytes, and a group of {LATE} has 1,048,576 "
        "for all; raise RYZ_ADAPTER_BYTES"
    ) in " ".join(stack.output.read_text().split())


def test_an_idle_model_does_not_sleep_below_its_least_groups(http: httpx.Client) -> None:
    """Beside one that sleeps after the same time; more groups than the least end."""
    scaled = http.post(f"/v1/manage/models/{KEPT}/scale?wait=30", json={"groups": 2})
    assert scaled.status_code == 200, scaled.text
    assert http.post(f"/v1/manage/models/{KEPT}/load?wait=30").status_code == 200, "as was declared again"
    said(post_turn(http, "Hi", model=LATE, max_tokens=4))
    wait_for(lambda: groups_of(http, LATE) == ("asleep", 0, 0), f"{LATE} sleeps")
    wait_for(lambda: groups_of(http, KEPT) == ("ready", 1, 1), f"one group of {KEPT} is left")
    until = time.monotonic() + SLEEP_S + 2
    while time.monotonic() < until:
        assert groups_of(http, KEPT) == ("ready", 1, 1)
        time.sleep(0.2)
    refused = http.post(f"/v1/manage/models/{KEPT}/sleep")
    assert (refused.status_code, refused.headers["x-ryz-reason"]) == (409, "refused_by_host")
    assert "is to run at any time" in refused.json()["error"]["message"]


def test_a_kept_group_that_is_killed_comes_back_without_a_request(stack: Stack, http: httpx.Client) -> None:
    (name,) = leaders(stack)
    pid = stack.pid_of(name)
    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        return [stack.pid_of(one) != pid for one in leaders(stack)] == [True]

    wait_for(is_back, f"a group of {KEPT} runs again")
    wait_for(lambda: groups_of(http, KEPT) == ("ready", 1, 1), f"{KEPT} is ready again")
    said(post_turn(http, "Hi", model=KEPT, max_tokens=4))
    stack.remember()


def test_unloading_ends_kept_groups_until_a_load_brings_them_back(stack: Stack, http: httpx.Client) -> None:
    assert http.post(f"/v1/manage/models/{KEPT}/unload?wait=30").status_code == 200
    assert groups_of(http, KEPT)[1:] == (0, 0)
    loaded = ryz("models", "load", KEPT, cwd=stack.folder)
    assert loaded.returncode == 0, loaded.stderr
    assert groups_of(http, KEPT) == ("ready", 1, 1)
