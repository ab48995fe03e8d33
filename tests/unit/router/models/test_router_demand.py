"""Requests that wait for a model: at this router and at others, and until when."""

from services.router.domain.models.control_state import Demand
from services.router.domain.models.demand import WAITS_S, DemandBook

A, B = ("t", "a"), ("t", "b")


def test_a_request_waits_until_it_is_served_or_does_not_come_back() -> None:
    book = DemandBook()
    assert book.note("m", A, 0.0)
    assert not book.note("m", A, 1.0)
    assert not book.note("m", B, 2.0)
    assert book.demand(2.0) == {"m": Demand(2, 2.0)}
    book.served("m", B)
    assert book.own(2.0) == {"m": 1}
    assert book.own(1.0 + WAITS_S) == {"m": 1}
    assert book.own(1.1 + WAITS_S) == {}
    assert book.demand(1.1 + WAITS_S) == {}


def test_the_wait_is_that_of_the_model_and_not_of_one_request() -> None:
    book = DemandBook()
    for second in range(9):  # each caller gives up after its first try, and another one comes
        book.note("m", ("t", str(second)), float(second))
    assert book.demand(9.0)["m"].waited_s == 9.0
    assert book.note("m", A, 20.0)  # after a break
    assert book.demand(20.0)["m"].waited_s == 0.0


def test_the_last_request_that_is_served_ends_the_demand() -> None:
    book = DemandBook()
    book.note("m", A, 0.0)
    book.served("m", B)
    book.served("other", A)
    assert book.own(0.0) == {"m": 1}
    book.served("m", A)
    assert book.own(0.0) == {}
    assert book.note("m", A, 0.1)


def test_the_wait_begins_anew_after_a_load_that_failed() -> None:
    book = DemandBook()
    book.note("m", A, 0.0)
    book.hear("r2", {"m": 1}, 0.0)
    book.begin_anew("m", 2.0)
    assert book.demand(2.5)["m"] == Demand(2, 0.5)


def test_the_counts_of_other_routers_are_added_until_they_are_silent_or_leave() -> None:
    book = DemandBook()
    assert book.hear("r2", {"m": 2, "none": 0}, 0.0)
    assert not book.hear("r2", {"m": 3}, 1.0)
    assert book.hear("r2", {"m": 3, "n": 1}, 2.0)
    book.note("m", A, 2.0)
    assert book.demand(2.0) == {"m": Demand(4, 2.0), "n": Demand(1, 0.0)}
    assert book.own(2.0) == {"m": 1}  # only its own counts are sent on
    book.hear("r3", {"m": 1}, 2.0)
    book.leave("r2")
    assert book.demand(2.0)["m"].requests == 2
    assert not book.hear("r3", {}, 2.5)
    assert book.waiting("m") == 1
    book.hear("r3", {"n": 1}, 3.0)
    assert book.demand(3.1 + WAITS_S) == {}


def test_all_is_bounded() -> None:
    book = DemandBook()
    for model in range(80):
        book.note(f"m{model}", A, 0.0)
    assert len(book.own(0.0)) == 64
    for request in range(5000):
        book.note("m0", ("t", str(request)), 0.0)
    assert book.own(0.0)["m0"] == 4096
    wide = DemandBook()
    for model in range(64):
        wide.note(f"{model:03}" + "é" * 125, A, 0.0)
    assert sum(len(name.encode()) for name in wide.own(0.0)) <= 12_288
    assert wide.own(0.0)
