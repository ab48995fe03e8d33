"""The kit with a real Prometheus: live scrapes with a key, rules that fire, and recorded scrapes."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from tests.kits.prometheus.recording import Recording
from tests.kits.prometheus.server import PrometheusServer, QueryError, ScrapeTarget

KEY = "key-of-the-kit"
REGISTRY = CollectorRegistry()
LOAD = Gauge("kit_load", 'Load, by a label that has to be escaped: \\ and ".', ["name"], registry=REGISTRY)
WORK = Counter("kit_work", "Work.", registry=REGISTRY)
NAME = 'a "b" \\ c\nd'


class MetricsHandler(BaseHTTPRequestHandler):
    """Shows the registry to those who have the key."""

    def do_GET(self) -> None:  # the name is the library's
        """Answer a scrape."""
        allowed = self.headers["Authorization"] == f"Bearer {KEY}"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(generate_latest(REGISTRY) if allowed else b"")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def target() -> Iterator[ScrapeTarget]:
    """A service with two metrics and a key."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), MetricsHandler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield ScrapeTarget("kit", f"http://127.0.0.1:{server.server_port}", KEY, {"group": "g0"})
    server.shutdown()
    server.server_close()


def test_scrapes_with_a_key_and_says_what_fires(tmp_path: Path, target: ScrapeTarget) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        'groups: [{name: kit, rules: [{alert: KitLoad, expr: kit_load > 1, labels: {severity: "none"}}]}]'
    )
    LOAD.labels(NAME).set(1)
    locked = ScrapeTarget("locked", target.url)
    with PrometheusServer(tmp_path, [target, locked], [rules], scrape_s=0.2) as prometheus:
        (found,) = prometheus.wait_for("kit_load")
        assert found.labels == {
            "__name__": "kit_load", "job": "kit", "group": "g0", "name": NAME,
            "instance": target.url.removeprefix("http://"),
        }  # fmt: skip
        prometheus.wait_for('up{job="locked"} == 0')
        assert "401" in prometheus.down()[f"{target.url}/metrics"]
        assert not prometheus.firing()
        LOAD.labels(NAME).set(2)
        assert prometheus.wait_for_alert("KitLoad", within_s=10) < 10
        assert [alert.labels["name"] for alert in prometheus.alerts()] == [NAME]
        assert not prometheus.broken_rules()
        with pytest.raises(QueryError, match="parse error"):
            prometheus.query("sum(")


def test_answers_from_a_recording(tmp_path: Path, target: ScrapeTarget) -> None:
    recording = Recording()
    begin = 1_700_000_000.0  # long ago: the server of a recording asks no clock
    for second in range(3):
        WORK.inc(10 if second else 0)
        LOAD.labels(NAME).set(10 * second)
        recording.add(target, generate_latest(REGISTRY).decode(), begin + second)
    assert {"kit_work_total", "kit_load", "up"} <= recording.names
    with recording.open(tmp_path) as prometheus:
        at = recording.end_s
        assert at == begin + 2
        (rate,) = prometheus.query("rate(kit_work_total[1m])", at)
        assert rate.value == pytest.approx(20 / 60, rel=0.5)  # few samples in a long window: extrapolated
        (load,) = prometheus.query('kit_load{group="g0"}', at)
        assert load.labels["name"] == NAME
        assert load.value == 20
        assert prometheus.query("kit_load", begin - 1) == []
        assert prometheus.series("up", begin, at) == [
            {"__name__": "up", "job": "kit", "group": "g0", "instance": target.url.removeprefix("http://")}
        ]
        assert [one.value for one in prometheus.query("scalar(count(up))", at)] == [1]
