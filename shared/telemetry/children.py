"""The series of a metric with labels, found by a dictionary: the metric's own look-up costs much more."""

from typing import Generic, TypeVar

from prometheus_client.metrics import MetricWrapperBase

T = TypeVar("T", bound=MetricWrapperBase)


class Children(Generic[T]):
    """In place of a metric whose series are counted once a request or more often, and never removed."""

    def __init__(self, metric: T) -> None:
        self._metric = metric
        self._known: dict[tuple[str, ...], T] = {}

    def labels(self, *values: str) -> T:
        """The series with these labels, as the metric's own `labels` gives it."""
        child = self._known.get(values)
        if child is None:
            child = self._known[values] = self._metric.labels(*values)
        return child
