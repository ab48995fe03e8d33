"""Shares of busy groups, from answers of their leaders."""

from typing import Any

import msgspec

from shared.accounts.live_shares import GroupParties, LiveShares, PartyCounts
from shared.messages import ServiceStatus


def leader(computed: int, *rows: PartyCounts, group: str = "g0", instance: str = "one") -> ServiceStatus:
    parties = msgspec.to_builtins(GroupParties(quantum=512.0, decode_tokens=2.0, rows=list(rows)))
    detail: dict[str, Any] = {
        "group": group,
        "model": "demo",
        "computed_tokens": computed,
        "parties": parties,
    }
    return ServiceStatus(
        service="worker", instance_id=instance, state="ready", version="1", uptime_s=1.0, pid=1, detail=detail
    )


def acme(charged: float, **more: Any) -> PartyCounts:
    return PartyCounts(party="acme", charged=charged, **more)


def lab(charged: float, **more: Any) -> PartyCounts:
    return PartyCounts(party="lab", charged=charged, **more)


def test_shares_are_those_of_the_time_between_two_answers() -> None:
    shares = LiveShares()
    (group,) = shares.groups([leader(1000, acme(900.0), lab(100.0))], 10.0)
    assert [one["share"] for one in group["parties"]] == [0.9, 0.1], "at first what they had since they came"
    assert group["tokens_per_s"] is None

    rows = acme(1000.0, weight=1.0, waiting=3, credit=-7.5), lab(400.0, weight=3.0, running=2)
    (group,) = shares.groups([leader(1200, *rows)], 12.0)
    assert group["tokens_per_s"] == 100.0
    first, second = group["parties"]
    assert (first["share"], first["due"], first["tokens_per_s"]) == (0.25, 0.25, 25.0)
    assert (second["share"], second["due"], second["tokens_per_s"]) == (0.75, 0.75, 75.0)
    assert (first["waiting"], first["credit"], second["running"]) == (3, -7.5, 2)


def test_the_window_moves() -> None:
    shares = LiveShares()
    for at in range(20):  # one token for acme in a second, and none for lab; then the other way round
        late = max(0, at - 10)
        (group,) = shares.groups([leader(at, acme(float(at - late)), lab(float(late)))], float(at))
        if at == 10:
            assert [one["share"] for one in group["parties"]] == [1.0, 0.0]
    assert [one["share"] for one in group["parties"]] == [0.0, 1.0]


def test_a_lone_party_has_all() -> None:
    shares = LiveShares()
    shares.groups([leader(0, acme(0.0))], 1.0)
    (group,) = shares.groups([leader(50, acme(0.0))], 2.0)
    assert (group["parties"][0]["share"], group["parties"][0]["tokens_per_s"]) == (1.0, 50.0)


def test_counts_that_begin_again() -> None:
    shares = LiveShares()
    shares.groups([leader(100, acme(500.0), lab(500.0))], 1.0)
    (group,) = shares.groups([leader(200, acme(530.0), lab(10.0))], 2.0)
    assert [one["share"] for one in group["parties"]] == [0.75, 0.25], "lab had gone and come back"
    (group,) = shares.groups([leader(5, acme(1.0), lab(1.0), instance="two")], 3.0)
    assert group["tokens_per_s"] is None, "another leader: its counts say nothing of the time before"


def test_nothing_was_computed_and_background_has_no_due() -> None:
    shares = LiveShares()
    shares.groups([leader(9, acme(1.0), lab(1.0, background=True))], 1.0)
    (group,) = shares.groups([leader(9, acme(1.0), lab(1.0, background=True))], 2.0)
    assert [one["share"] for one in group["parties"]] == [None, None]
    assert [one["due"] for one in group["parties"]] == [1.0, None]


def test_other_services_and_broken_answers_are_left_out() -> None:
    plain = ServiceStatus(
        service="router", instance_id="r", state="ready", version="1", uptime_s=1.0, pid=1, detail={}
    )
    broken = leader(1)
    broken.detail["parties"] = {"rows": "many"}
    assert LiveShares().groups([plain, broken], 1.0) == []
    down = leader(1)
    down.detail["parties"] = None
    assert LiveShares().groups([down], 1.0) == []
