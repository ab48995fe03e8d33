"""Headers of a completion about its group, its route and its KV."""

import pytest

from services.gateway.admission.caller import CallOutcome
from shared.messages import Accepted, Usage


def accepted(reason: str = "home", **more: str) -> Accepted:
    return Accepted(request_id="r1", group="g0", reason=reason, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (CallOutcome("g0"), {}),
        (CallOutcome("g0", accepted(kv="warm")), {b"x-ryz-route": b"home", b"x-ryz-kv": b"warm"}),
        (CallOutcome("g0", accepted("")), {}),
        (
            CallOutcome("g0", accepted(), [Usage(fetched_tokens=16)]),
            {b"x-ryz-route": b"home", b"x-ryz-kv": b"fetch"},
        ),
        (CallOutcome("g0", accepted(), [Usage(cached_tokens=16)]), {b"x-ryz-route": b"home"}),
        (CallOutcome("g0", accepted("a b\r\nx: y")), {b"x-ryz-route": b"a_b__x:_y"}),
    ],
)
def test_only_what_is_known_is_said(outcome: CallOutcome, expected: dict[bytes, bytes]) -> None:
    assert dict(outcome.headers()) == {b"x-ryz-group": b"g0"} | expected
