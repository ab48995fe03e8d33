"""Histograms that are cheap enough to feed once per token, and labels whose number is bounded."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

T = TypeVar("T", bound=MetricWrapperBase)
Labels = tuple[str, ...]
OTHER = "other"


class Children(Generic[T]):
    """Finds series in a dictionary, for metrics that are counted for each request and never removed."""

    def __init__(self, metric: T) -> None:
        self._metric = metric
        self._known: dict[tuple[str, ...], T] = {}

    def labels(self, *values: str) -> T:
        """Returns the series with these labels, like the metric's `labels`."""
        child = self._known.get(values)
        if child is None:
            child = self._known[values] = self._metric.labels(*values)
        return child


def bounds_of(buckets: Sequence[float]) -> list[str]:
    """Return the values of the label `le`."""
    return [*(str(float(bound)) for bound in buckets), "+Inf"]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class TokenHistogram:
    """One series of a histogram: no locks, for one event loop only.

    Attributes:
        sum: Of all values.
    """

    __slots__ = ("_buckets", "_counts", "sum")

    def __init__(self, buckets: Sequence[float]) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, once or several times."""
        self._counts[bisect_left(self._buckets, value)] += times
        self.sum += value * times

    def counts(self) -> dict[str, list[float] | list[int]]:
        """Return upper bounds and the number of values in each bucket, the last one without a bound."""
        return {"bounds": list(self._buckets), "counts": list(self._counts)}

    def cumulative(self) -> Iterator[int]:
        """Return the number of values up to each upper bound, and of all."""
        return accumulate(self._counts)

    def rows(self) -> list[tuple[str, float]]:
        """Return upper bounds and the number of values up to each."""
        return list(zip(bounds_of(self._buckets), self.cumulative(), strict=True))


class TextCollector(Collector):
    """A collector of one metric that writes its own text."""

    def __init__(self, name: str) -> None:
        self.name = name

    def text(self) -> str:
        """Return the metric in Prometheus's text format."""
        raise NotImplementedError


class HistogramFamily(TextCollector):
    """A histogram with labels. Callers keep the series that they feed often.

    Args:
        registry: Shows it; None: another collector does.
        text: Its description.
        buckets: Upper bounds.
        labels: Names of the labels; without any there is one series, from the start.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None,
        name: str,
        text: str,
        buckets: Sequence[float],
        labels: Labels = (),
    ) -> None:
        super().__init__(name)
        self._text, self._buckets, self._labels = text, buckets, labels
        self._series: dict[Labels, TokenHistogram] = {}
        self._beginnings: dict[Labels, list[str]] = {}
        if not labels:
            self.series()
        if registry is not None:
            registry.register(self)

    def series(self, *values: str) -> TokenHistogram:
        """Return the series with these values of the labels."""
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = TokenHistogram(self._buckets)
        return found

    def collect(self) -> Iterator[Metric]:
        """Yield the metric, for the registry."""
        yield self.shown()

    def shown(self, name: str = "", labels: Mapping[str, str] | None = None) -> Metric:
        """Return the metric, under another name if one is given, with labels that all its series get."""
        labels = labels or {}
        family = HistogramMetricFamily(name or self.name, self._text, labels=(*labels, *self._labels))
        for values, one in self._series.items():
            family.add_metric((*labels.values(), *values), one.rows(), one.sum)
        return family

    def text(self) -> str:
        """Return the metric in Prometheus's text format."""
        return self.write(self.name, {}, self._beginnings)

    def write(self, name: str, labels: Mapping[str, str], kept: dict[Labels, list[str]]) -> str:
        """Return the metric in Prometheus's text format.

        Args:
            labels: Labels that all series get.
            kept: Beginnings of lines by series, kept from one text to the next.
        """
        lines = [f"# HELP {name} {self._text}\n# TYPE {name} histogram\n"]
        for values, one in self._series.items():
            beginnings = kept.get(values)
            if beginnings is None:
                pairs = {**labels, **dict(zip(self._labels, values, strict=True))}
                beginnings = kept[values] = _beginnings(name, pairs, self._buckets)
            *buckets, count, total = beginnings
            counts = list(one.cumulative())
            lines += [f"{begin}{value}\n" for begin, value in zip(buckets, counts, strict=True)]
            lines.append(f"{count}{counts[-1]}\n{total}{one.sum!r}\n")
        return "".join(lines)

    def describe(self) -> Iterator[Metric]:
        """Yield the metric without series, when it is registered."""
        yield HistogramMetricFamily(self.name, self._text, labels=self._labels)


class HistogramView(TextCollector):
    """A histogram under another name, with labels that all its series get."""

    def __init__(self, family: HistogramFamily, name: str, labels: Mapping[str, str]) -> None:
        super().__init__(name)
        self._family, self._added = family, labels
        self._beginnings: dict[Labels, list[str]] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the metric, for the registry."""
        yield self._family.shown(self.name, self._added)

    def text(self) -> str:
        """Return the metric in Prometheus's text format."""
        return self._family.write(self.name, self._added, self._beginnings)


def _beginnings(name: str, labels: Mapping[str, str], buckets: Sequence[float]) -> list[str]:
    """Return the lines of one series up to their values: buckets, count, sum."""
    pairs = [f'{label}="{_escaped(value)}"' for label, value in labels.items()]
    bounds = [",".join([*pairs, f'le="{bound}"']) for bound in bounds_of(buckets)]
    shown = f"{{{','.join(pairs)}}}" if pairs else ""
    return [
        *(f"{name}_bucket{{{inner}}} " for inner in bounds),
        f"{name}_count{shown} ",
        f"{name}_sum{shown} ",
    ]


class LabelBound:
    """Keeps the number of label combinations below a limit, whatever clients send.

    Args:
        limit: Combinations that are shown as they are: the first ones.
        common: Returns what a later combination is shown as; it has to have few results.
    """

    def __init__(self, limit: int, common: Callable[[Labels], Labels]) -> None:
        self._limit = limit
        self._common = common
        self._known: set[Labels] = set()

    def fit(self, values: Labels) -> Labels:
        """Return the labels under which a combination is counted."""
        if values in self._known:
            return values
        if len(self._known) < self._limit:
            self._known.add(values)
            return values
        return self._common(values)
