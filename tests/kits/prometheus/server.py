"""A real Prometheus on a free port: it scrapes given targets, evaluates given rules and answers PromQL.

with PrometheusServer(tmp_path, targets=[ScrapeTarget("router", url)], rules=[alerts]) as prometheus:
    prometheus.wait_for("ryz_router_groups > 0", within_s=10)
    assert "RyzGroupLost" not in prometheus.firing()
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
import yaml

from tests.kits.prometheus.programs import find_program
from tests.kits.servers import ServerProcess, free_port
from tests.kits.waiting import PATIENCE_S

_POLL_S = 0.1
_ASK_S = 30.0
_KEEP = "100y"  # recordings may be old


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """An address that Prometheus scrapes.

    Attributes:
        job: Its label `job`, the service's name.
        url: Of the service, such as `http://127.0.0.1:8101`; `/metrics` is added.
        key: Sent as `Authorization: Bearer ...`, if there is one.
        labels: Further labels of all its series.
    """

    job: str
    url: str
    key: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def as_config(self) -> dict[str, Any]:
        """Return the target as an entry of `scrape_configs`."""
        scheme, _, address = self.url.rstrip("/").partition("://")
        entry: dict[str, Any] = {
            "scheme": scheme,
            "static_configs": [{"targets": [address], "labels": {"job": self.job, **self.labels}}],
        }
        if self.key:
            entry["authorization"] = {"credentials": self.key}
        return entry


class QueriedSample(NamedTuple):
    """One series of an instant query."""

    labels: dict[str, str]
    value: float


class ActiveAlert(NamedTuple):
    """An alert that is pending or firing."""

    name: str
    state: str
    labels: dict[str, str]


class QueryError(Exception):
    """Prometheus refused a query; the message is its own."""


class PrometheusServer(ServerProcess):
    """A Prometheus of one test. Its data and configuration are in `folder`.

    Args:
        folder: Empty, or with a folder `data` that a recording wrote.
        targets: What it scrapes.
        rules: Files of rules.
        scrape_s: Time between scrapes, and between evaluations of rules, in seconds.
    """

    def __init__(
        self,
        folder: Path,
        targets: Sequence[ScrapeTarget] = (),
        rules: Sequence[Path] = (),
        scrape_s: float = 1.0,
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.config = folder / "prometheus.yaml"
        self._rules, self._scrape_ms = [str(path.resolve()) for path in rules], round(scrape_s * 1000)
        self._write_config(targets)
        super().__init__(
            [
                find_program("prometheus"),
                f"--config.file={self.config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--storage.tsdb.retention.time={_KEEP}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--web.enable-lifecycle",
            ],
            port,
            output=folder / "prometheus.log",
        )
        self._http = httpx.Client(base_url=f"{self.url}/api/v1", timeout=_ASK_S, trust_env=False)

    def __enter__(self) -> Self:
        self.start()
        give_up = time.monotonic() + PATIENCE_S
        while self._http.get(f"{self.url}/-/ready").status_code != 200:
            assert time.monotonic() < give_up, f"Prometheus was not ready within {PATIENCE_S:g} s"
            time.sleep(_POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self.stop(kill=True)  # it would write its last block first

    def scrape(self, targets: Sequence[ScrapeTarget]) -> None:
        """Scrape these targets from now on, such as services with new ports."""
        self._write_config(targets)
        self._http.post(f"{self.url}/-/reload").raise_for_status()

    def query(self, expression: str, at: float | None = None) -> list[QueriedSample]:
        """Return the series of an expression now, or at a time in seconds since the epoch.

        Raises:
            QueryError: The expression is not valid.
        """
        asked = {"query": expression, **({} if at is None else {"time": f"{at:.3f}"})}
        answer = self._ask("query", asked)
        if answer["resultType"] == "scalar":
            return [QueriedSample({}, float(answer["result"][1]))]
        return [QueriedSample(one["metric"], float(one["value"][1])) for one in answer["result"]]

    def series(self, selector: str, begin: float, end: float) -> list[dict[str, str]]:
        """Return the labels of all series of a selector that have samples between two times."""
        asked = {"match[]": selector, "start": f"{begin:.3f}", "end": f"{end:.3f}"}
        found: list[dict[str, str]] = self._ask("series", asked)
        return found

    def alerts(self) -> list[ActiveAlert]:
        """Return the alerts that are pending or firing."""
        answer = self._ask("alerts", {})["alerts"]
        return [ActiveAlert(one["labels"]["alertname"], one["state"], one["labels"]) for one in answer]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {alert.name for alert in self.alerts() if alert.state == "firing"}

    def broken_rules(self) -> dict[str, str]:
        """Return the rules whose last evaluation failed, with the reason."""
        rules = [rule for group in self._ask("rules", {})["groups"] for rule in group["rules"]]
        return {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")}

    def down(self) -> dict[str, str]:
        """Return the addresses whose last scrape failed, with the reason."""
        answer = self._ask("targets", {"state": "active"})["activeTargets"]
        return {one["scrapeUrl"]: one["lastError"] for one in answer if one["health"] != "up"}

    def wait_for(self, expression: str, within_s: float = 10.0) -> list[QueriedSample]:
        """Return the series of an expression as soon as it has any; fails after `within_s` seconds."""
        give_up = time.monotonic() + within_s
        while not (found := self.query(expression)):
            assert time.monotonic() < give_up, f"not within {within_s:g} s: {expression}; down: {self.down()}"
            time.sleep(_POLL_S)
        return found

    def wait_for_alert(self, name: str, within_s: float) -> float:
        """Return the seconds until an alert fires; fails after `within_s`."""
        begin = time.monotonic()
        while name not in (now := self.firing()):
            assert time.monotonic() - begin < within_s, f"{name} not within {within_s:g} s; firing: {now}"
            time.sleep(_POLL_S)
        return time.monotonic() - begin

    def _ask(self, what: str, asked: Mapping[str, str]) -> Any:
        answer = self._http.get(what, params=asked).json()
        if answer["status"] != "success":
            raise QueryError(answer["error"])
        return answer["data"]

    def _write_config(self, targets: Sequence[ScrapeTarget]) -> None:
        every = f"{self._scrape_ms}ms"
        jobs = [{"job_name": f"target-{n}", **one.as_config()} for n, one in enumerate(targets)]
        config = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": self._rules,
            "scrape_configs": jobs,
        }
        self.config.write_text(yaml.safe_dump(json.loads(json.dumps(config))))
