"""What callers get, measured by model, tenant and priority, with few series whatever they send."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.errors import Cancelled, InvalidRequest, ModelNotFound, Overloaded, RyzError
from shared.messages import ChatMessage, GenerateRequest, Usage
from shared.telemetry.service_levels import MAX_MODELS, MAX_SERIES, ServiceLevels, priority_class


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of one service."""
    return CollectorRegistry()


def asked(model: str = "demo", **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id="r", model=model, messages=[ChatMessage(role="user", content="Hi")], **fields
    )


def num_series(registry: CollectorRegistry) -> int:
    return sum(len(family.samples) for family in registry.collect())


def test_times_are_those_of_the_caller(registry: CollectorRegistry) -> None:
    levels = ServiceLevels(registry)
    request = levels.begin(asked(tenant="acme", priority=2), 10.0)
    for now in (10.4, 10.5, 12.5):
        request.add_tokens(now)
    request.end(13.0, None, Usage(prompt_tokens=7, completion_tokens=3))
    names = {"model": "demo", "tenant": "acme", "priority": "high"}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, names | labels)

    assert value("ryz_slo_time_to_first_token_seconds_sum") == pytest.approx(0.4)
    assert value("ryz_slo_time_to_first_token_seconds_bucket", le="0.3") == 0
    assert value("ryz_slo_time_to_first_token_seconds_bucket", le="0.5") == 1
    assert value("ryz_slo_inter_token_seconds_count") == 2
    assert value("ryz_slo_inter_token_seconds_sum") == pytest.approx(2.1)
    assert value("ryz_slo_request_seconds_sum") == pytest.approx(3.0)
    assert value("ryz_slo_requests_total", outcome="ok") == 1
    genai = {
        "gen_ai_operation_name": "chat", "gen_ai_provider_name": "ryzanstein", "gen_ai_request_model": "demo",
    }  # fmt: skip
    for kind, tokens in (("input", 7), ("output", 3)):
        labels = {**genai, "gen_ai_token_type": kind}
        assert registry.get_sample_value("gen_ai_client_token_usage_sum", labels) == tokens
    labels = {**genai, "error_type": ""}
    assert registry.get_sample_value("gen_ai_client_operation_duration_seconds_sum", labels) == pytest.approx(
        3.0
    )


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (Cancelled("left"), "cancelled"),
        (Overloaded("full"), "failed"),
        (InvalidRequest("wrong"), "refused"),
        (ModelNotFound("unknown"), "refused"),
    ],
)
def test_only_faults_of_the_service_count_as_failed(
    registry: CollectorRegistry, error: RyzError | None, outcome: str
) -> None:
    levels = ServiceLevels(registry)
    levels.begin(asked(), 0.0).end(1.0, error, Usage())
    (found,) = [
        sample.labels["outcome"]
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "ryz_slo_requests_total" and sample.value
    ]
    assert found == outcome


def test_models_that_no_group_serves_have_no_series(registry: CollectorRegistry) -> None:
    levels = ServiceLevels(registry)
    levels.begin(asked("first"), 0.0).end(1.0, ModelNotFound("unknown"), Usage())
    before = num_series(registry)
    for number in range(10_000):
        levels.begin(asked(f"model-{number}"), 0.0).end(1.0, ModelNotFound("unknown"), Usage())
    assert num_series(registry) == before


def test_tenants_and_served_models_are_bounded(registry: CollectorRegistry) -> None:
    levels = ServiceLevels(registry)

    def run(model: str, tenant: str, priority: int) -> None:
        request = levels.begin(asked(model, tenant=tenant, priority=priority), 0.0)
        request.add_tokens(1.0)
        request.add_tokens(2.0)
        request.end(3.0, None, Usage(prompt_tokens=1, completion_tokens=2))

    for number in range(400):
        run(f"model-{number}", f"tenant-{number}", number % 3 - 1)
    before = num_series(registry)
    for number in range(10_000):
        run(f"other-{number}", f"someone-{number}", number % 21 - 10)
    assert num_series(registry) == before
    shown = {
        (sample.labels["model"], sample.labels["tenant"], sample.labels["priority"])
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "ryz_slo_request_seconds_count"
    }
    assert len(shown) == MAX_SERIES + 3
    assert len({model for model, _, _ in shown}) == MAX_MODELS + 1
    assert {("other", "other", name) for name in map(priority_class, (-1, 0, 1))} <= shown


def test_whole_answers_have_no_times_between_tokens(registry: CollectorRegistry) -> None:
    levels = ServiceLevels(registry)
    request = levels.begin(asked(delivery="whole"), 0.0)
    request.add_tokens(1.0)
    request.add_tokens(2.0)
    request.end(3.0, None, Usage())
    names = {"model": "demo", "tenant": "default", "priority": "normal"}
    assert registry.get_sample_value("ryz_slo_inter_token_seconds_count", names) is None
    assert registry.get_sample_value("ryz_slo_time_to_first_token_seconds_count", names) is None
    assert registry.get_sample_value("ryz_slo_request_seconds_count", names) == 1


def test_a_request_that_was_taken_over_counts_without_times(registry: CollectorRegistry) -> None:
    levels = ServiceLevels(registry)
    request = levels.begin(asked(), 0.0)
    request.adopt()
    request.add_tokens(1.0)
    request.end(3.0, None, Usage())
    names = {"model": "demo", "tenant": "default", "priority": "normal"}
    assert registry.get_sample_value("ryz_slo_requests_total", {**names, "outcome": "ok"}) == 1
    assert registry.get_sample_value("ryz_slo_time_to_first_token_seconds_count", names) is None
    assert registry.get_sample_value("ryz_slo_request_seconds_count", names) is None
