"""All PromQL of boards and rules finds series in scrapes of a real stack; docs/metrics.md names all metrics.

The stack runs for other tests as well. It has two groups of two ranks, a gateway, a router and a KV state
service; a Prometheus is started on what was recorded.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import httpx
import pytest

from tests.kits.e2e.stack import Stack
from tests.kits.e2e.turns import post_turn
from tests.kits.prometheus.expressions import (
    ROOT,
    board_expressions,
    recorded_names,
    rule_expressions,
    selectors_of,
)
from tests.kits.prometheus.recording import Recording
from tests.kits.prometheus.server import PrometheusServer, ScrapeTarget
from tests.kits.waiting import wait_for

SWEEP_S = 40.0
# series of stacks whose models come and go, as this one's do not; their rules have series of their own
OF_HOSTS = ("ryz_router_models{", "ryz_router_model_failed{", "ryz_router_model_waiting_requests{")
LIBRARIES = ("python_", "process_", "scrape_", "up")


class RecordedStack(NamedTuple):
    """What a stack showed, and a Prometheus that has it."""

    recording: Recording
    prometheus: PrometheusServer


def targets_of(stack: Stack) -> list[ScrapeTarget]:
    """Return all services of a stack."""
    others = [
        ScrapeTarget(one["service"], one["detail"]["admin_url"])
        for one in stack.status()["services"]
        if one["detail"]["admin_url"]
    ]
    return [ScrapeTarget("gateway", stack.state.url), *others]


def use(stack: Stack, number: int) -> None:
    """Makes requests of the usual kinds, and some that fail."""
    with httpx.Client(base_url=stack.state.url, timeout=30, trust_env=False) as client:

        def ask(text: str, **fields: object) -> httpx.Response:
            return post_turn(client, text, f"recorded-{number % 2}", max_tokens=8, **fields)

        assert ask("My name is Ada.", stream=True).status_code == 200
        assert ask("What is my name?").status_code == 200
        assert ask("Hello", model="unknown").status_code == 404
        body = {"model": "demo", "prompt": "Hello", "max_tokens": 400, "stream": True}
        with suppress(httpx.HTTPError), client.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())  # and leaves


@pytest.fixture(scope="module")
def recorded(torch_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedStack]:
    """Three scrapes of a stack in use."""
    recording, targets = Recording(), targets_of(torch_stack)
    assert {target.job for target in targets} == {"gateway", "router", "kvstate", "worker"}

    (kvstate,) = (target for target in targets if target.job == "kvstate")

    def shows_tenants() -> bool:
        return "ryz_kvstate_tenant_bytes{" in httpx.get(f"{kvstate.url}/metrics", trust_env=False).text

    for number in range(3):
        use(torch_stack, number)
        wait_for(shows_tenants, "kvstate has counted blocks by tenant", SWEEP_S)
        recording.scrape(targets)
        time.sleep(0.3)  # scrapes need different times
    with recording.open(tmp_path_factory.mktemp("recorded")) as prometheus:
        yield RecordedStack(recording, prometheus)


def test_every_selector_of_every_board_and_rule_finds_series(recorded: RecordedStack) -> None:
    made, asked = recorded_names() | {"ALERTS", "ALERTS_FOR_STATE"}, dict[str, str]()
    for location, expr, _ in [*board_expressions(), *rule_expressions()]:
        for selector in selectors_of(expr):
            if selector.partition("{")[0] not in made:
                asked.setdefault(selector, location)
    assert len(asked) > 100
    begin, end = recorded.recording.begin_s - 1, recorded.recording.end_s + 1
    missing = {
        selector: location
        for selector, location in asked.items()
        if not selector.startswith(OF_HOSTS) and not recorded.prometheus.series(selector, begin, end)
    }
    assert missing == {}


def test_every_query_of_every_board_has_values_with_the_labels_of_its_legend(recorded: RecordedStack) -> None:
    found = board_expressions()
    assert len({one.location.partition(":")[0] for one in found}) == 5
    for one in found:
        series = recorded.prometheus.query(one.expr, recorded.recording.end_s)
        labels = {label for each in series for label in each.labels}
        assert series, one
        assert labels.issuperset(one.labels), (one, labels)


def test_the_page_of_metrics_names_all_that_a_stack_shows(recorded: RecordedStack) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()

    def on_page(name: str) -> bool:
        bases = (name, *(name.removesuffix(end) for end in ("_bucket", "_sum", "_count", "_created")))
        return any(f"| `{base}` |" in page or f"| `{base}_total` |" in page for base in bases)

    names = {name for name in recorded.recording.names if not name.startswith(LIBRARIES)}
    assert len(names) > 150
    assert sorted(name for name in names if not on_page(name)) == []
