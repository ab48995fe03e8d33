"""The text of `/metrics` is cached for a short time, and only callers with the key get it."""

from prometheus_client import CollectorRegistry, Counter
from pydantic import SecretStr
from starlette.requests import Request

from shared.web.bearer_key import BearerKey
from shared.web.metrics_page import FRESH_PER_S, MetricsPage


def asked(*headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "headers": list(headers)})


def test_many_callers_at_once_get_one_text() -> None:
    registry = CollectorRegistry()
    calls, now_s = Counter("calls", "Calls.", registry=registry), [100.0]
    page = MetricsPage(registry, BearerKey(SecretStr("")), lambda: now_s[0])

    def shown() -> int:
        calls.inc()
        text = bytes(page.answer_scrape(asked()).body)
        return int(float(text.partition(b"\ncalls_total ")[2].split()[0]))

    assert [shown() for _ in range(12)] == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8]
    now_s[0] += 1 / FRESH_PER_S
    assert [shown(), shown()] == [13, 13]


def test_what_is_kept_needs_the_key() -> None:
    page = MetricsPage(CollectorRegistry(), BearerKey(SecretStr("key-of-metrics")))
    good, wrong = (b"authorization", b"Bearer key-of-metrics"), (b"authorization", b"Bearer other")
    for headers, status in (((), 401), ((good,), 200), ((wrong,), 401), ((), 401), ((good,), 200)):
        assert page.answer_scrape(asked(*headers)).status_code == status
