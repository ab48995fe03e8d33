"""The text of `/metrics` is what the library would write."""

import pytest
from prometheus_client import Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from shared.telemetry.histograms import HistogramFamily, HistogramView
from shared.telemetry.service_registry import ServiceRegistry, metrics_text


def samples(text: bytes) -> list[str]:
    return sorted(
        repr(
            (
                family.name,
                family.type,
                family.documentation,
                one.name,
                sorted(one.labels.items()),
                float(one.value),
            )
        )
        for family in text_string_to_metric_families(text.decode())
        for one in family.samples
    )


def filled_registry() -> ServiceRegistry:
    registry = ServiceRegistry()
    Counter("others", "Counted by the library.", registry=registry).inc(3)
    plain = HistogramFamily(registry, "plain_seconds", "Without labels.", (1, 2.5))
    named = HistogramFamily(registry, "named_seconds", "With labels.", (0.001, 10), ("name", "kind"))
    for value in (0.5, 1.0, 2.0, 1e9):
        plain.series().observe(value)
        named.series('a "b"\\\n', "é").observe(value / 3)
    named.series("empty", "")
    registry.register(HistogramView(named, "other:name", {"model": "m"}))
    return registry


def test_histograms_write_what_the_library_would() -> None:
    registry = filled_registry()
    for _ in range(2):  # the second text has kept beginnings
        assert samples(registry.text()) == samples(generate_latest(registry))
    assert metrics_text(registry) == registry.text()
    assert registry.get_sample_value("plain_seconds_bucket", {"le": "1.0"}) == 2


def test_a_name_is_given_once() -> None:
    registry = filled_registry()
    with pytest.raises(ValueError, match="plain_seconds"):
        HistogramFamily(registry, "plain_seconds", "Again.", (1,))
