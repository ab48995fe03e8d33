"""A faster look-up for the series of a metric with labels."""

from typing import Generic, TypeVar

from prometheus_client.metrics import MetricWrapperBase

T = TypeVar("T", bound=MetricWrapperBase)


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
