"""Rates, places, body sizes, keys and errors: what the gateway decides without a connection."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.auth import Keyring, parse_keys
from services.gateway.errors import HttpRefusal, answer_for
from services.gateway.limits import (
    ClientDisconnected,
    Places,
    RateLimiter,
    Receive,
    content_length,
    read_body,
)
from shared.errors import FAMILY, InvalidRequest, Overloaded, RateLimited, RequestTooLarge, from_code


def feed(parts: Iterable[bytes], *, then_gone: bool = False) -> Receive:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": True} for part in parts
    ]
    if then_gone:
        messages.append({"type": "http.disconnect"})
    else:
        messages[-1]["more_body"] = False

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    return receive


def test_a_bucket_refuses_above_its_burst_and_says_when_to_come_back() -> None:
    limiter = RateLimiter(rate=2.0, burst=2)
    limiter.take("a", 0.0)
    limiter.take("a", 0.0)
    with pytest.raises(RateLimited) as caught:
        limiter.take("a", 0.1)
    assert caught.value.retry_after_s == pytest.approx(0.4)
    limiter.take("b", 0.1)
    limiter.take("a", 0.5)
    with pytest.raises(InvalidRequest):
        limiter.take("a", 100.0, cost=3)


def test_a_rate_of_zero_is_no_limit() -> None:
    limiter = RateLimiter(rate=0.0, burst=1)
    for _ in range(100):
        limiter.take("a", 0.0)


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=200), st.floats(0.5, 50), st.integers(1, 10))
def test_a_tenant_never_gets_more_than_burst_plus_rate_times_time(
    gaps: list[float], rate: float, burst: int
) -> None:
    limiter, now, granted = RateLimiter(rate=rate, burst=burst), 0.0, 0
    waits_s: list[float] = []
    for gap in gaps:
        now += gap
        try:
            limiter.take("a", now)
            granted += 1
        except RateLimited as error:
            waits_s.append(error.retry_after_s or 0.0)
    assert all(wait_s > 0 for wait_s in waits_s)
    assert granted <= burst + rate * now + 1e-6


def test_places_are_all_or_nothing() -> None:
    places = Places(3)
    places.take(2)
    with pytest.raises(Overloaded) as caught:
        places.take(2)
    assert caught.value.retry_after_s == 1.0
    places.take(1)
    places.free(3)
    assert places.taken == 0


async def test_a_body_is_put_together_from_its_parts() -> None:
    assert await read_body(feed([b"ab", b"", b"cd"]), 4, 4) == b"abcd"
    assert await read_body(feed([b"abcd"]), None, 4) == b"abcd"


@pytest.mark.parametrize("parts", [[b"abcde"], [b"abc", b"de"], [b"abc", b"de", b"f"]])
async def test_a_body_over_the_limit_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(RequestTooLarge):
        await read_body(feed(parts), None, 4)


async def test_an_announced_length_over_the_limit_is_refused_unread() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    with pytest.raises(RequestTooLarge):
        await read_body(receive, content_length({b"content-length": b"5"}), 4)


async def test_a_caller_that_leaves_while_it_sends() -> None:
    with pytest.raises(ClientDisconnected):
        await read_body(feed([b"ab"], then_gone=True), None, 4)


def test_a_length_that_is_no_number_counts_as_unknown() -> None:
    assert content_length({b"content-length": b"x"}) is None
    assert content_length({}) is None


def test_keys_map_to_tenants_and_wrong_ones_are_401() -> None:
    ring = Keyring(parse_keys("secret-1:acme, other:key1:umbrella"))
    assert ring.tenant(b"Bearer secret-1") == "acme"
    assert ring.tenant(b"bearer other:key1") == "umbrella"
    for header, code in (
        (b"", "missing_api_key"),
        (b"Basic x", "missing_api_key"),
        (b"Bearer nope", "invalid_api_key"),
    ):
        with pytest.raises(HttpRefusal) as caught:
            ring.tenant(header)
        assert (caught.value.status, caught.value.code) == (401, code)
    assert Keyring({}).tenant(b"Bearer whatever") == "default"


@pytest.mark.parametrize(
    "text", ["short:a", "long-enough", "long-enough:", "long-enough:a b", "12345678:a,12345678:b"]
)
def test_wrong_key_settings_are_refused_without_showing_the_key(text: str) -> None:
    with pytest.raises(ValueError, match="entry") as caught:
        parse_keys(text)
    assert "long-enough" not in str(caught.value)


@pytest.mark.parametrize("code", sorted(FAMILY))
def test_every_error_of_the_family_has_openais_shape(code: str) -> None:
    answer = answer_for(
        from_code(code, "what happened", {"retry_after_s": 1.2, "param": "p", "reason": "a\r\nb"})
    )
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    headers = dict(answer.headers)
    assert b"\r" not in headers[b"x-ryz-reason"]
    assert (b"retry-after" in headers) == (answer.status in {429, 503})
    assert headers.get(b"retry-after", b"2") == b"2"


def test_an_unexpected_error_shows_nothing_of_itself() -> None:
    for error in (RuntimeError("secret"), from_code("no-such-code", "secret")):
        answer = answer_for(error)
        assert answer.status == 500
        assert b"secret" not in answer.body
