"""The text of `/metrics` is kept for a moment, and only for those who may read it."""

from prometheus_client import CollectorRegistry, Counter
from pydantic import SecretStr
from starlette.requests import Request

from shared.web.keys import BearerKey
from shared.web.metrics_page import KEPT_S, MetricsPage


def asked(*headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "headers": list(headers)})


def test_the_text_is_kept_for_a_moment() -> None:
    registry = CollectorRegistry()
    calls, now_s = Counter("calls", "Calls.", registry=registry), [100.0]
    page = MetricsPage(registry, BearerKey(SecretStr("")), lambda: now_s[0])
    for at_s, shown in ((100.0, b"0.0"), (100.0 + KEPT_S / 2, b"0.0"), (100.0 + KEPT_S, b"2.0")):
        now_s[0] = at_s
        assert b"calls_total " + shown in page.answer(asked()).body
        calls.inc()


def test_what_is_kept_needs_the_key() -> None:
    page = MetricsPage(CollectorRegistry(), BearerKey(SecretStr("key-of-metrics")))
    good, wrong = (b"authorization", b"Bearer key-of-metrics"), (b"authorization", b"Bearer other")
    for headers, status in (((), 401), ((good,), 200), ((wrong,), 401), ((), 401), ((good,), 200)):
        assert page.answer(asked(*headers)).status_code == status
