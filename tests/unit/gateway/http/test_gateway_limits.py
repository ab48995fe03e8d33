"""Rates, quotas, body sizes, keys and errors: decisions that need no connection."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive

from services.gateway.admission.auth import parse_keys
from services.gateway.admission.bodies.reader import BodyReader, content_length
from services.gateway.admission.disconnects import ClientDisconnected
from services.gateway.admission.errors.refusals import HttpRefusal, answer_for
from services.gateway.admission.quota import Quota
from services.gateway.admission.rate_limits import RateLimiter, tokens_per_minute
from services.gateway.settings import GatewaySettings
from shared.errors import FAMILY, InvalidRequest, Overloaded, RateLimited, RequestTooLarge, from_code
from tests.kits.constants import settings_with_constants
from tests.kits.gateway.identity.identities import identities


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
    limiter.take_units("a", 0.0)
    limiter.take_units("a", 0.0)
    with pytest.raises(RateLimited) as caught:
        limiter.take_units("a", 0.1)
    assert caught.value.retry_after_s == pytest.approx(0.4)
    limiter.take_units("b", 0.1)
    limiter.take_units("a", 0.5)
    with pytest.raises(InvalidRequest):
        limiter.take_units("a", 100.0, cost=3)


def test_a_rate_of_zero_is_no_limit() -> None:
    limiter = RateLimiter(rate=0.0, burst=1)
    for _ in range(100):
        limiter.take_units("a", 0.0)


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=200), st.floats(0.5, 50), st.integers(1, 10))
def test_a_tenant_never_gets_more_than_burst_plus_rate_times_time(
    gaps: list[float], rate: float, burst: int
) -> None:
    limiter, now, granted = RateLimiter(rate=rate, burst=burst), 0.0, 0
    waits_s: list[float] = []
    for gap in gaps:
        now += gap
        try:
            limiter.take_units("a", now)
            granted += 1
        except RateLimited as error:
            waits_s.append(error.retry_after_s or 0.0)
    assert all(wait_s > 0 for wait_s in waits_s)
    assert granted <= burst + rate * now + 1e-6


def test_slots_are_all_or_nothing() -> None:
    slots = Quota(3, share=1.0)
    slots.take_units("a", 2)
    with pytest.raises(Overloaded) as caught:
        slots.take_units("a", 2)
    assert caught.value.retry_after_s == 1.0
    slots.take_units("a")
    slots.free_units("a", 3)
    assert (slots.taken, slots.held_by("a")) == (0, 0)


def test_a_tenant_alone_may_have_all_and_one_of_several_its_share() -> None:
    alone, shared = Quota(5, share=1.0), Quota(5, share=0.5)
    alone.take_units("a", 5)
    shared.take_units("a", 3)
    with pytest.raises(RateLimited) as caught:
        shared.take_units("a")
    assert caught.value.data["reason"] == "tenant_gateway_concurrency"
    assert caught.value.retry_after_s == 1.0
    shared.take_units("b", 2)
    with pytest.raises(Overloaded):
        shared.take_units("b")


@given(
    st.integers(1, 50), st.floats(0.01, 1.0), st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)))
)
def test_no_tenant_has_more_than_its_share_and_all_together_no_more_than_there_is(
    limit: int, share: float, wanted: list[tuple[str, int]]
) -> None:
    quota, held = Quota(limit, share=share), {"a": 0, "b": 0, "c": 0}
    for tenant, count in wanted:
        try:
            quota.take_units(tenant, count)
            held[tenant] += count
        except (RateLimited, Overloaded):
            full = quota.taken + count > limit
            assert full or held[tenant] + count > quota.party_limit
    assert quota.taken == sum(held.values()) <= limit
    assert all(count == quota.held_by(tenant) <= quota.party_limit for tenant, count in held.items())
    for tenant, count in held.items():
        quota.free_units(tenant, count)
    assert quota.taken == 0


def bodies(limit: int = 1024, held: Quota | None = None, **settings: Any) -> BodyReader:
    chosen = settings_with_constants(GatewaySettings, {"max_body_bytes": limit} | settings)
    in_flight = Quota(
        chosen.constants.max_bodies, share=0.5, what="bodies on their way", reason="gateway_bodies"
    )
    return BodyReader(chosen, held or Quota(2**20, share=1.0), in_flight)


async def test_a_body_is_put_together_from_its_parts() -> None:
    held, parts = Quota(4096, share=1.0), [b"a" * 500, b"", b"b" * 500]
    assert await bodies(1024, held).read_body(feed(parts), {}, "t") == b"".join(parts)
    assert held.held_by("t") == 1000
    assert await bodies().read_body(feed([b"abcd"]), {b"content-length": b"4"}, "t") == b"abcd"


@pytest.mark.parametrize("parts", [[b"a" * 1025], [b"a" * 512, b"a" * 513], [b"a" * 512] * 3])
async def test_a_body_over_the_limit_is_refused(parts: list[bytes]) -> None:
    held = Quota(2**20, share=1.0)
    with pytest.raises(RequestTooLarge):
        await bodies(1024, held).read_body(feed(parts), {}, "t")
    assert held.taken == 0


async def test_an_announced_length_over_the_limit_is_refused_unread() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    with pytest.raises(RequestTooLarge):
        await bodies(1024).read_body(receive, {b"content-length": b"1025"}, "t")


async def test_a_caller_that_leaves_while_it_sends() -> None:
    reader, held = bodies(), Quota(2**20, share=1.0)
    with pytest.raises(ClientDisconnected):
        await reader.read_body(feed([b"ab"], then_gone=True), {}, "t")
    assert (reader.in_flight, held.taken) == (0, 0)


async def test_bodies_that_take_more_bytes_than_there_are_for_a_tenant_are_refused() -> None:
    held = Quota(1000, share=0.5)
    with pytest.raises(RateLimited):
        await bodies(1024, held).read_body(feed([b"a" * 400, b"a" * 400]), {}, "t")
    assert held.taken == 0


async def test_a_body_slower_than_the_least_rate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.admission.bodies.reader.PATIENCE_S", 0.05)
    drops = 0

    async def receive() -> dict[str, Any]:
        nonlocal drops
        drops += 1
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"a", "more_body": True}

    reader = bodies(2**20, body_min_rate=1000)
    with pytest.raises(InvalidRequest) as caught:
        await reader.read_body(receive, {}, "t")
    assert caught.value.data["reason"] == "body_timeout"
    assert drops < 20
    assert reader.in_flight == 0


def test_a_length_that_is_no_number_counts_as_unknown() -> None:
    assert content_length({b"content-length": b"x"}) is None
    assert content_length({}) is None


def test_tokens_are_estimated_first_and_charged_at_the_end() -> None:
    limit = tokens_per_minute(600)
    assert limit.take_estimate("t", 0.0, 100) == 100
    limit.charge("t", 450)  # it used 550
    assert dict(limit.headers("t", 0.0))[b"x-ratelimit-remaining-tokens"] == b"50"
    with pytest.raises(RateLimited, match="600 tokens a minute") as caught:
        limit.take_estimate("t", 0.0, 60)
    assert caught.value.data["reason"] == "tenant_tokens"
    assert caught.value.data["retry_after_s"] == pytest.approx(1.0)
    assert limit.take_estimate("t", 1.0, 60) == 60
    limit.charge("t", 600)  # far more than estimated: the tenant waits until it is paid back
    assert dict(limit.headers("t", 1.0))[b"x-ratelimit-remaining-tokens"] == b"0"
    with pytest.raises(RateLimited):
        limit.take_estimate("t", 60.0, 1)
    assert limit.take_estimate("t", 61.1, 1) == 1
    limit.charge("t", -1)
    assert limit.take_estimate("other", 61.1, 10**6) == 600, "more than there ever is waits for a full bucket"
    limit.charge("other", -600)
    assert dict(limit.headers("other", 61.1))[b"x-ratelimit-remaining-tokens"] == b"600"
    free = tokens_per_minute(0)
    assert free.take_estimate("t", 0.0, 10**9) == 0
    free.charge("t", 10**9)
    assert free.headers("t", 0.0) == []


def test_keys_map_to_tenants_and_wrong_ones_are_401() -> None:
    ring = identities(parse_keys("secret-1:acme, other:key1:umbrella"))
    assert ring.find(b"Bearer secret-1").tenant == "acme"
    assert ring.find(b"bearer other:key1").tenant == "umbrella"
    for header, code in (
        (b"", "missing_api_key"),
        (b"Basic x", "missing_api_key"),
        (b"Bearer nope", "invalid_api_key"),
    ):
        with pytest.raises(HttpRefusal) as caught:
            ring.find(header)
        assert (caught.value.status, caught.value.code) == (401, code)
    assert identities({}).find(b"Bearer whatever").tenant == "default"


@pytest.mark.parametrize(
    ("path", "tenant"),
    [
        ("/v1/messages", "acme"),
        ("/v1/messages/count_tokens", "acme"),
        ("/v1/models", "acme"),
        ("/v1/streams", "acme"),
        ("/v1/chat/completions", "umbrella"),
        ("/v1/responses", "umbrella"),
    ],
)
def test_routes_of_anthropics_clients_take_their_header_for_a_key(path: str, tenant: str) -> None:
    ring = identities(parse_keys("secret-1:acme,secret-2:umbrella"))
    both = {b"x-api-key": b"secret-1", b"authorization": b"Bearer secret-2"}
    assert ring.of_headers(both, path).tenant == tenant
    assert ring.of_headers({b"authorization": b"Bearer secret-2"}, path).tenant == "umbrella"
    if tenant == "umbrella":
        with pytest.raises(HttpRefusal):
            ring.of_headers({b"x-api-key": b"secret-1"}, path)


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


@pytest.mark.parametrize("code", sorted(FAMILY))
def test_a_busy_or_missing_part_says_when_to_come_back_also_when_it_does_not_know(code: str) -> None:
    answer = answer_for(from_code(code, "what happened"))
    headers = dict(answer.headers)
    assert headers.get(b"retry-after") == (b"1" if answer.status in {429, 503} else None)
    again = answer.status not in {409, 422, 504} and code != "insufficient_quota"  # clients might retry these
    assert headers.get(b"x-should-retry") == (None if again else b"false")


@pytest.mark.parametrize(
    ("code", "kind"), [("cancelled", "request_cancelled"), ("deadline_exceeded", "server_error")]
)
def test_an_end_that_is_not_the_requests_fault_is_not_called_so(code: str, kind: str) -> None:
    assert json.loads(answer_for(from_code(code, "what happened")).body)["error"]["type"] == kind


def test_an_unexpected_error_shows_nothing_of_itself() -> None:
    for error in (RuntimeError("secret"), from_code("no-such-code", "secret")):
        answer = answer_for(error)
        assert answer.status == 500
        assert b"secret" not in answer.body
