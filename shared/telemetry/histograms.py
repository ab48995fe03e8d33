"""Histograms that are cheap enough to feed once per token, and labels whose number is bounded."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Labels = tuple[str, ...]
OTHER = "other"


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

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._buckets, value)] += 1
        self.sum += value

    def counts(self) -> dict[str, list[float] | list[int]]:
        """Return upper bounds and the number of values in each bucket, the last one without a bound."""
        return {"bounds": list(self._buckets), "counts": list(self._counts)}

    def cumulative(self) -> Iterator[int]:
        """Return the number of values up to each upper bound, and of all."""
        return accumulate(self._counts)

    def rows(self) -> list[tuple[str, float]]:
        """Return upper bounds and the number of values up to each."""
        return list(zip(bounds_of(self._buckets), self.cumulative(), strict=True))


class HistogramFamily(Collector):
    """A histogram with labels. Callers keep the series that they feed often.

    Args:
        registry: Shows it; None: another collector does.
        name: Of the metric.
        text: What it tells.
        buckets: Upper bounds.
        labels: Names of the labels; without any there is one series, from the start.

    Attributes:
        name: Of the metric.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None,
        name: str,
        text: str,
        buckets: Sequence[float],
        labels: Labels = (),
    ) -> None:
        self.name, self._text, self._buckets, self._labels = name, text, buckets, labels
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
        lines = [f"# HELP {self.name} {self._text}\n# TYPE {self.name} histogram\n"]
        for values, one in self._series.items():
            beginnings = self._beginnings.get(values)
            if beginnings is None:
                beginnings = self._beginnings[values] = self._begin_lines(values)
            *buckets, count, total = beginnings
            counts = list(one.cumulative())
            lines += [f"{begin}{value}\n" for begin, value in zip(buckets, counts, strict=True)]
            lines.append(f"{count}{counts[-1]}\n{total}{one.sum!r}\n")
        return "".join(lines)

    def _begin_lines(self, values: Labels) -> list[str]:
        """Return the lines of one series up to their values: buckets, count, sum."""
        pairs = [f'{name}="{_escaped(value)}"' for name, value in zip(self._labels, values, strict=True)]
        buckets = [",".join([*pairs, f'le="{bound}"']) for bound in bounds_of(self._buckets)]
        labels = f"{{{','.join(pairs)}}}" if pairs else ""
        return [
            *(f"{self.name}_bucket{{{inner}}} " for inner in buckets),
            f"{self.name}_count{labels} ",
            f"{self.name}_sum{labels} ",
        ]

    def describe(self) -> Iterator[Metric]:
        """Yield the metric without series, when it is registered."""
        yield HistogramMetricFamily(self.name, self._text, labels=self._labels)


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
