"""What cannot be served is refused quickly, by an error that names the field, and nothing else suffers."""

import time
from collections.abc import Iterator

import httpx
import pytest

from tests.kits.chaos.scale import scaled
from tests.kits.clients.bad_demands import BAD_DEMANDS, CHAT, HELLO, BadDemand
from tests.kits.e2e.stack import Stack

ANSWER_S = scaled(15.0, 2.0)  # other tests run beside the short form


@pytest.fixture(scope="module")
def http(null_stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=null_stack.state.url, timeout=30) as http:
        yield http


@pytest.mark.parametrize("bad", BAD_DEMANDS, ids=lambda bad: bad.name)
def test_a_bad_demand_is_refused_by_name(http: httpx.Client, null_stack: Stack, bad: BadDemand) -> None:
    began = time.monotonic()
    answer = http.post(bad.path, json={"model": "demo", **bad.body})
    took_s = time.monotonic() - began
    assert 400 <= answer.status_code < 500, answer.text[:500]
    error = answer.json()["error"]
    assert bad.field in f"{error.get('param')} {error['message']}", error
    assert len(error["message"]) < 1000
    assert took_s < ANSWER_S


def test_the_stack_serves_as_before(http: httpx.Client) -> None:
    answer = http.post(CHAT, json={"model": "demo", "messages": HELLO, "max_tokens": 4})
    assert answer.status_code == 200, answer.text
