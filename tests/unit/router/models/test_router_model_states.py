"""In what phase a model is, and what a request for it is answered while no group takes requests."""

from typing import Any

import pytest

from services.router.domain.models.book import ModelBook
from services.router.domain.models.offered import AWAY_S, SILENT_S
from shared.messages import HostedGroup, ModelState, OfferedModel
from tests.kits.router.fleet import beat, new_fleet
from tests.kits.router.hosts import hosted, offer, report

LOADING = hosted("g0", "m", phase="starting", age_ms=200, load_ms=0)
RUNNING = hosted("g0", "m")
STOPPING = hosted("g0", "m", phase="stopping")


def book_of(*models: OfferedModel, groups: list[HostedGroup] | None = None) -> ModelBook:
    book = ModelBook()
    book.observe(report(1, *models, groups=groups), 0.0)
    return book


def only(states: list[ModelState]) -> ModelState:
    (state,) = states
    return state


@pytest.mark.parametrize(
    ("says", "groups", "phase"),
    [
        ({}, [], "asleep"),
        ({"local": False}, [], "absent"),
        ({"wish": "unload"}, [], "absent"),
        ({"most_groups": 0}, [], "absent"),  # an operator scaled it so
        ({"most_groups": 0, "first_bytes": 0, "local": False}, [], "absent"),  # it is still to be found
        ({"most_groups": 0, "first_bytes": 0, "failure": "no such file"}, [], "failed"),  # it was not
        ({}, [LOADING], "loading"),
        ({}, [RUNNING], "loading"),  # it was ready, and no heartbeat says that it is
        ({}, [STOPPING], "draining"),
        ({}, [STOPPING, hosted("g1", "m", phase="starting")], "loading"),
        ({"failure": "no disk", "retry_ms": 5000}, [], "failed"),
        ({"failure": "no disk", "retry_ms": 5000}, [STOPPING], "failed"),
        ({"failure": "no disk", "retry_ms": 500}, [], "asleep"),  # it may be tried again by now
        ({}, [hosted("g1", "other")], "asleep"),
    ],
)
def test_phases_without_a_ready_group(says: dict[str, Any], groups: list[HostedGroup], phase: str) -> None:
    state = only(book_of(offer("m", **says), groups=groups).states(new_fleet(), 1.0))
    assert (state.phase, state.groups_ready) == (phase, 0)


def test_a_model_is_ready_while_a_heartbeat_says_so() -> None:
    fleet, book = new_fleet(), book_of(offer("m", aliases=["x"], most_groups=3), groups=[RUNNING])
    fleet.observe(beat(1, state="recovering"), 1.0)
    assert only(book.states(fleet, 1.0)).phase == "loading"
    fleet.observe(beat(2), 1.0)
    state = only(book.states(fleet, 1.0))
    assert (state.phase, state.groups_ready, state.groups, state.aliases) == ("ready", 1, 1, ["x"])


def test_requests_wait_for_a_model_until_a_group_takes_requests() -> None:
    """Each router remembers for 3 s what it refused, also what another one has given to the group."""
    fleet, book = new_fleet(), book_of(offer("m"), groups=[LOADING])
    book.demand.note("m", ("t", "r-1"), 1.0)
    book.demand.hear("r2", {"m": 2}, 1.0)
    assert only(book.states(fleet, 1.0)).waiting == 3
    fleet.observe(beat(1), 1.0)
    assert only(book.states(fleet, 1.0)).waiting == 0


def test_a_model_has_failed_if_no_host_may_try_it() -> None:
    failed = offer("m", failure="no disk", retry_ms=5000)
    book = book_of(failed)
    book.observe(report(1, offer("m"), host="h2"), 0.0)
    assert only(book.states(new_fleet(), 1.0)).phase == "asleep"
    book.observe(report(2, offer("m", failure="no memory", retry_ms=2500), host="h2"), 0.0)
    state = only(book.states(new_fleet(), 1.0))
    assert (state.phase, state.why, state.retry_s) == ("failed", "no memory", 1.5)


def test_a_request_for_an_offered_model_waits() -> None:
    fleet, book = new_fleet(), book_of(offer("m", load_ms=3000))
    refusal = book.refusal("m", fleet, 1.0)
    assert refusal is not None
    assert (refusal.code, refusal.reason, refusal.retry_after_s) == ("unavailable", "waking", 3.0)
    assert refusal.error().message == "model 'm' is asleep, and is being woken; retry in 3 s"
    book.observe(report(2, offer("m", load_ms=3000), groups=[LOADING]), 1.0)
    refusal = book.refusal("m", fleet, 1.5)
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(2.3)  # 0.2 s had passed at the time of the report
    assert refusal.message == "model 'm' is loading"
    late = book.refusal("m", fleet, 60.0)
    assert late is not None
    assert late.retry_after_s == 0.1


def test_a_failed_an_unloaded_and_a_too_large_model_are_refused_at_once() -> None:
    fleet, book = new_fleet(), book_of(
        offer("failed", failure="no disk", retry_ms=5000), offer("gone", wish="unload"), offer("large")
    )  # fmt: skip
    book.too_large = {"large": "The model large needs 9 GiB."}
    failed, gone, large = (book.refusal(name, fleet, 1.0) for name in ("failed", "gone", "large"))
    assert failed is not None
    assert gone is not None
    assert large is not None
    assert (failed.reason, failed.retry_after_s) == ("model_failed", 4.0)
    assert "no disk" in failed.message
    assert (gone.reason, gone.retry_after_s) == ("model_unloaded", None)
    assert "`ryz models load gone`" in gone.message
    assert (large.reason, large.retry_after_s) == ("model_too_large", None)
    assert "needs 9 GiB" in large.message
    assert {one.code for one in (failed, gone, large)} == {"unavailable"}


def test_a_model_that_was_scaled_to_no_groups_or_not_found_is_not_waited_for() -> None:
    book = book_of(
        offer("scaled", most_groups=0), offer("fetched", most_groups=0, first_bytes=0, local=False),
        offer("missing", most_groups=0, first_bytes=0, local=False, failure="no such file"),
    )  # fmt: skip
    scaled, fetched, missing = (
        book.refusal(name, new_fleet(), 1.0) for name in ("scaled", "fetched", "missing")
    )
    assert scaled is not None
    assert fetched is not None
    assert missing is not None
    assert (scaled.reason, fetched.reason, missing.reason) == ("model_unloaded", "waking", "model_failed")
    assert "`ryz models scale scaled 1`" in scaled.message
    assert "no such file" in missing.message
    assert missing.retry_after_s is None
    book.observe(report(1, offer("scaled"), host="h2"), 1.0)  # another host may load it
    other = book.refusal("scaled", new_fleet(), 1.0)
    assert other is not None
    assert other.reason == "waking"


def test_an_unknown_model_is_told_which_are_offered_and_served() -> None:
    fleet, book = new_fleet(), book_of(offer("m"))
    fleet.observe(beat(1, model="served"), 1.0)
    assert book.refusal("x", fleet, 1.0) is None
    refusal = book.unknown("x", "default", fleet, 1.0)
    assert refusal.code == "model_not_found"
    assert refusal.message.endswith("m, served")
    only_served = ModelBook().unknown("x", "default", fleet, 1.0)
    assert only_served.message == "no group serves model 'x'; models that are served: served"


def test_models_of_a_silent_host_are_away_before_they_are_unknown() -> None:
    book, fleet = book_of(offer("m"), offer("n")), new_fleet()
    assert book.expire(SILENT_S + 0.1) == ["h"]
    assert (book.states(fleet, SILENT_S + 0.1), book.offered.away()) == ([], ["m", "n"])
    refusal = book.refusal("m", fleet, SILENT_S + 0.1)
    assert refusal is not None
    assert (refusal.code, refusal.reason) == ("unavailable", "no_group")
    assert "is silent" in refusal.message
    assert refusal.retry_after_s
    book.observe(report(2, offer("m")), 10.0)  # it is back, and was told to offer one of them no more
    assert book.offered.away() == ["n"]
    waking = book.refusal("m", fleet, 10.0)
    assert waking is not None
    assert waking.reason == "waking"
    book.expire(SILENT_S + AWAY_S + 1.0)
    assert book.offered.away() == ["m"]
    assert book.refusal("n", fleet, SILENT_S + AWAY_S + 1.0) is None
