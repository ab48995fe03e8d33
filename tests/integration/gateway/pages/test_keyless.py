"""Pages that need no key: the gateway renders them once for all callers."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.web.metrics_page import FRESH_PER_S
from tests.kits.gateway.gateway import running_gateway
from tests.kits.gateway.raw_http import ask, raw_connection

_GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
_CALLS = 200


class Scrapes(Collector):
    """Counts how often it is collected."""

    def __init__(self) -> None:
        self.count = 0

    def collect(self) -> Iterator[Metric]:
        self.count += 1
        yield GaugeMetricFamily("scrapes", "Calls of this.", value=self.count)


async def test_metrics_are_made_for_many_callers_at_once() -> None:
    async with running_gateway() as gateway:
        scrapes = Scrapes()
        gateway.service.registry.register(scrapes)
        before, began_s = scrapes.count, time.monotonic()
        async with raw_connection(gateway.port) as connection:
            for _ in range(_CALLS):
                await connection.send(_GET % b"/metrics")
                assert b"\nscrapes " in (await connection.answer()).body
        assert scrapes.count - before <= FRESH_PER_S * (time.monotonic() - began_s + 1)
        first = (await ask(gateway.port, _GET % b"/metrics")).body
        while (await ask(gateway.port, _GET % b"/metrics")).body == first:
            pass  # poll until the page is rendered again


async def test_the_api_document_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    dumps = json.dumps

    def counting(value: Any, **options: Any) -> str:
        if isinstance(value, dict) and "openapi" in value and "paths" in value:
            encoded.append(value)
        return dumps(value, **options)

    monkeypatch.setattr(json, "dumps", counting)
    async with running_gateway() as gateway:
        answers = [await ask(gateway.port, _GET % b"/openapi.json") for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    assert len({answer.body for answer in answers}) == 1
    assert answers[0].headers["content-type"] == "application/json"
    assert "/v1/chat/completions" in json.loads(answers[0].body)["paths"]
    assert len(encoded) == 1
