"""Reports of hosts: which of them count, and for how long."""

from services.router.domain.models.offered import SILENT_S, OfferedModels
from tests.kits.router.hosts import offer, report


def test_newer_reports_count() -> None:
    offered = OfferedModels()
    assert not offered
    assert offered.observe(report(2, offer("a")), 0.0)
    assert not offered.observe(report(1, offer("b")), 0.1)
    assert not offered.observe(report(2, offer("b")), 0.1)
    assert offered.names() == ["a"]
    assert offered.observe(report(3, offer("b")), 0.2)
    assert offered.names() == ["b"]
    assert offered.offers("a") == []


def test_late_reports_of_a_former_agent_are_ignored() -> None:
    offered = OfferedModels()
    offered.observe(report(9, offer("old")), 0.0)
    assert offered.observe(report(0, offer("new"), instance="i2"), 0.1)
    assert not offered.observe(report(10, offer("old")), 0.2)
    assert offered.observe(report(1, offer("new"), instance="i2"), 0.3)
    assert not offered.observe(report(11, offer("old")), 0.4)
    assert offered.names() == ["new"]


def test_a_silent_host_is_gone_with_its_models_and_comes_back() -> None:
    offered = OfferedModels()
    offered.observe(report(5, offer("a"), host="h1"), 0.0)
    offered.observe(report(5, offer("b"), host="h2"), 3.0)
    assert offered.expire(SILENT_S) == []
    assert offered.expire(SILENT_S + 0.1) == ["h1"]
    assert offered.names() == ["b"]
    assert offered.observe(report(6, offer("a"), host="h1"), 5.0)
    assert offered.names() == ["a", "b"]


def test_on_a_busy_machine_a_host_may_be_silent_for_longer() -> None:
    offered = OfferedModels()
    offered.observe(report(5, offer("a"), host="h1"), 0.0)
    assert offered.expire(SILENT_S + 3.9, patience_s=4.0) == []
    assert offered.names() == ["a"]
    assert offered.expire(SILENT_S + 4.1, patience_s=4.0) == ["h1"]


def test_hosts_that_offer_the_same_model_are_listed_by_name() -> None:
    offered = OfferedModels()
    for host in ("h2", "h1"):
        offered.observe(report(1, offer("a", priority=int(host[1])), host=host), 0.0)
    assert [(host.report.host, one.priority) for host, one in offered.offers("a")] == [("h1", 1), ("h2", 2)]
