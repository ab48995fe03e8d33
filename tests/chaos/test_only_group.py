"""The only group of a model dies or freezes: its streams wait for it, or end with a clear error."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.kits.chaos.faults import Victim, kill_one_by_one
from tests.kits.chaos.scale import scaled
from tests.kits.chaos.services import PATIENT, await_idle, metrics_of
from tests.kits.chaos.streams import Readers, Said, difference, http_client, make_bodies, read, undisturbed
from tests.kits.e2e.stack import Stack
from tests.kits.waiting import wait_for

pytestmark = pytest.mark.timeout(scaled(300, 900))
PATIENCE_S = 4.0  # deadline of the requests of a frozen group


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One group of two ranks."""
    with Stack(tmp_path_factory.mktemp("single-stack"), "--groups", "1", env=PATIENT, calm=False) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[httpx.Client]:
    with http_client(stack.state.url) as client:
        yield client


def test_streams_wait_until_their_group_is_back(stack: Stack, client: httpx.Client) -> None:
    """Streams that have begun continue after any kill; only requests without a token may be refused."""
    victims: list[Victim] = scaled(["rank", "leader"], ["rank", "leader", "rank"] * 5)
    bodies = make_bodies("demo", 8, scaled(96, 128))
    expected = undisturbed(client, bodies)
    with Readers(client, bodies, expected, refusals=True) as readers:
        killed = kill_one_by_one(stack.state.nats_urls, victims, seed=1)
        readers.await_streams(len(bodies))
    print(killed, readers.streams, readers.refused)
    assert readers.streams - readers.refused > len(bodies)
    await_idle(stack, groups=1)


def test_a_group_that_stands_still_for_good(stack: Stack, client: httpx.Client) -> None:
    """Streams end by their deadline with one error event and no `[DONE]`; whole answers with a 504."""
    bodies = [
        body | {"timeout": PATIENCE_S} for body in make_bodies("demo", 4, 400) if "logprobs" not in body
    ]
    calm = [read(client, body | {"timeout": 60}) for body in bodies]
    whole: dict[str, Any] = bodies[0] | {
        "stream": False,
        "n": 8,
        "stream_options": None,
        "max_tokens": 1500,  # long enough to run until the streams have begun
    }
    leader, metrics = stack.pid_of("worker-g0"), metrics_of(stack)["g0"]
    begun = threading.Barrier(len(bodies) + 1, timeout=30)

    def first_text() -> None:
        begun.wait()

    with ThreadPoolExecutor(len(bodies) + 1) as pool:
        # A leader's frames reach a gateway in order. The streams begin after the whole answer runs, so once
        # their first text has come, the gateway also has the answer's Accepted frame.
        answer = pool.submit(client.post, "/v1/chat/completions", json=whole)
        wait_for(
            lambda: metrics.value("ryz_worker_num_requests_running") == whole["n"], "the answer runs", 20
        )
        streams = [pool.submit(read, client, body, first_text) for body in bodies]
        begun.wait()
        os.kill(leader, signal.SIGSTOP)
        try:
            for stream, expected in zip(streams, calm, strict=True):
                ended_late(stream.result(), expected)
            refused = answer.result()
            assert (refused.status_code, refused.json()["error"]["code"]) == (504, "deadline_exceeded")
            assert refused.json()["error"]["message"]
            late = client.post("/v1/chat/completions", json=whole)  # no group can take it
            assert late.status_code in {503, 504}, late.text
        finally:
            os.kill(leader, signal.SIGCONT)
    wait_for(lambda: read(client, bodies[0]).complete, "the group serves again")
    for body, expected in zip(bodies, calm, strict=True):
        assert difference(read(client, body | {"timeout": 60}), expected) == ""
    await_idle(stack, groups=1)


def ended_late(said: Said, expected: Said) -> None:
    """Checks that a stream has the beginning of the answer and one error event with the reason."""
    assert (said.status, said.dones) == (200, 0), said
    (error,) = said.errors
    assert error["code"] == "deadline_exceeded", error
    assert "ran out of time" in error["message"]
    for choice, text in said.texts.items():
        assert text
        assert expected.texts[choice].startswith(text)
