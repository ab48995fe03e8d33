"""Records what services show at `/metrics`, and opens a Prometheus on such a recording.

recording = Recording()
for _ in range(3):
    recording.scrape(targets)
    ...
with recording.open(tmp_path) as prometheus:
    found = prometheus.query("ryz_router_groups", recording.end_s)
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.kits.prometheus.programs import promtool
from tests.kits.prometheus.server import PrometheusServer, ScrapeTarget

_ASK_S = 10.0


@dataclass
class Recording:
    """Samples of several services at several times.

    Attributes:
        lines: Samples in OpenMetrics' text form, in the order of time.
        names: Names of the samples.
        begin_s, end_s: Times of the first and the last scrape, in seconds since the epoch.
    """

    lines: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    begin_s: float = 0.0
    end_s: float = 0.0

    def scrape(self, targets: Sequence[ScrapeTarget]) -> None:
        """Read all targets once; all their samples get the same time.

        Raises:
            httpx.HTTPError: A target does not answer.
        """
        now = time.time()
        for target in targets:
            headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
            answer = httpx.get(f"{target.url}/metrics", headers=headers, timeout=_ASK_S, trust_env=False)
            self.add(target, answer.raise_for_status().text, now)

    def add(self, target: ScrapeTarget, text: str, at: float) -> None:
        """Add the text of one scrape, taken at `at` seconds since the epoch."""
        instance = target.url.rstrip("/").partition("://")[2]
        own = {"job": target.job, "instance": instance, **target.labels}
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        for sample in [*samples, Sample("up", {}, 1.0), Sample("scrape_duration_seconds", {}, 0.01)]:
            self.names.add(sample.name)
            self.lines.append(_line(sample, own, at))
        self.begin_s, self.end_s = self.begin_s or at, max(self.end_s, at)

    @contextmanager
    def open(self, folder: Path, rules: Sequence[Path] = ()) -> Iterator[PrometheusServer]:
        """Start a Prometheus that has these samples and scrapes nothing.

        Args:
            folder: An empty folder for its data.
            rules: Files of rules, which it evaluates at the time of today, not at that of the recording.

        Yields:
            The server; ask it with `at=recording.end_s`.
        """
        text = folder / "recording.txt"
        text.write_text("\n".join([*self.lines, "# EOF\n"]))
        promtool("tsdb", "create-blocks-from", "openmetrics", text, folder / "data")
        with PrometheusServer(folder, rules=rules) as server:
            yield server


def _line(sample: Sample, own: dict[str, str], at: float) -> str:
    """Return a sample as a line; labels of the target that the sample has itself become `exported_...`."""
    labels = {(f"exported_{key}" if key in own else key): value for key, value in sample.labels.items()}
    pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in sorted({**labels, **own}.items()))
    return f"{sample.name}{{{pairs}}} {sample.value!r} {at:.3f}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
