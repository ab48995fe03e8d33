"""The controller's view of a group: what it has to do, and for how long it has had nothing to do."""

from services.router.domain.groups.fleet import Fleet
from services.router.domain.models.assumed import Sent, assume
from services.router.domain.models.book import ModelBook
from services.router.domain.models.control_state import GroupState, KVState, Load, Stop
from tests.kits.router.fleet import beat, new_fleet
from tests.kits.router.hosts import GIB, hosted, offer, report


def book_of(**more: object) -> ModelBook:
    book = ModelBook()
    book.observe(report(1, offer("m"), groups=[hosted("g0", "m", **more)]), 0.0)
    return book


def seen(book: ModelBook, fleet: Fleet, now: float) -> GroupState:
    ((group,),) = (host.groups for host in book.view(fleet, now).hosts)
    return group


def test_a_group_without_heartbeats_is_neither_ready_nor_idle() -> None:
    group = seen(book_of(phase="starting", load_ms=0), new_fleet(), 9.0)
    assert group == GroupState("g0", "m", GIB)


def test_idle_time_counts_from_the_last_request_that_was_seen() -> None:
    book, fleet = book_of(), new_fleet()
    fleet.observe(beat(1, accepted=7), 1.0)
    assert seen(book, fleet, 1.0).idle_s == 0.0
    assert seen(book, fleet, 3.0).idle_s == 2.0
    fleet.observe(beat(2, running=1, accepted=8), 4.0)
    assert (seen(book, fleet, 4.0).busy, seen(book, fleet, 4.0).idle_s) == (1, 0.0)
    fleet.observe(beat(3, accepted=8), 5.0)
    assert seen(book, fleet, 6.0).idle_s == 2.0
    fleet.observe(beat(4, accepted=9), 7.0)  # came and ended between two views
    assert seen(book, fleet, 7.0).idle_s == 0.0
    fleet.observe(beat(1, instance="i2"), 20.0)  # another process under the same name
    assert seen(book, fleet, 20.0).idle_s == 0.0


def test_a_request_that_was_just_sent_makes_a_group_busy() -> None:
    book, fleet = book_of(), new_fleet()
    fleet.observe(beat(1, accepted=7), 1.0)
    seen(book, fleet, 1.0)
    fleet.count_sent("g0", 10, 3.0)
    group = seen(book, fleet, 3.0)
    assert (group.busy, group.idle_s) == (1, 0.0)


def test_idle_time_counts_from_the_first_readiness() -> None:
    book, fleet = book_of(phase="starting", load_ms=0), new_fleet()
    fleet.observe(beat(1, state="starting"), 1.0)
    group = seen(book, fleet, 5.0)
    assert (group.ready, group.idle_s, group.ready_s) == (False, 0.0, 0.0)
    fleet.observe(beat(2), 6.0)
    seen(book, fleet, 6.0)
    group = seen(book, fleet, 7.5)
    assert (group.ready, group.idle_s, group.ready_s, group.served) == (True, 1.5, 1.5, False)


def test_the_age_of_a_limit_grows_between_reports() -> None:
    book = book_of(kv_bytes=10, kv_most_bytes=30, kv_least_bytes=5, kv_needed_bytes=7, kv_age_ms=4000)
    assert seen(book, new_fleet(), 1.5).kv == KVState(10, 30, 5, 7, age_s=5.5)


def test_the_host_knows_for_how_long_a_group_was_ready() -> None:
    book, fleet = book_of(age_ms=60_000, load_ms=500), new_fleet()
    fleet.observe(beat(1, accepted=1), 1.0)
    group = seen(book, fleet, 2.0)
    assert (group.ready_s, group.load_s, group.served) == (61.5, 0.5, True)


def test_a_queue_counts_when_it_has_lasted_for_a_second() -> None:
    book, fleet = book_of(), new_fleet()
    fleet.observe(beat(1, running=8, waiting=3), 1.0)
    assert seen(book, fleet, 1.0).waiting == 0
    fleet.observe(beat(2, running=8, waiting=2), 1.5)
    assert seen(book, fleet, 1.5).waiting == 0
    fleet.observe(beat(3, running=8, waiting=4), 2.0)
    assert seen(book, fleet, 2.0).waiting == 2
    fleet.observe(beat(4, running=8), 2.5)
    assert seen(book, fleet, 2.5).waiting == 0


def test_a_group_that_drains_or_is_lost_is_not_ready() -> None:
    book, fleet = book_of(), new_fleet()
    fleet.observe(beat(1, running=2, state="draining"), 1.0)
    group = seen(book, fleet, 1.0)
    assert (group.stopping, group.ready, group.busy) == (True, False, 2)
    fleet.observe(beat(2), 1.1)
    fleet.mark_lost("g0", "silent", 1.2)
    group = seen(book, fleet, 1.2)
    assert (group.stopping, group.ready, group.busy) == (False, False, 0)


def test_commands_under_way_count_as_carried_out() -> None:
    book, fleet = book_of(), new_fleet()
    fleet.observe(beat(1), 1.0)
    view = book.view(fleet, 1.0)
    assert assume(view, []) is view
    sent = [Sent(Stop("h", "g0", "evicted", "n")), Sent(Load("h", "m", "demand"), running=1)]
    (host,) = assume(view, sent).hosts
    stopping, starting = host.groups
    assert stopping.stopping
    assert (starting.model, starting.charged_bytes, starting.starting) == ("m", GIB, True)
    (host,) = assume(view, [Sent(Load("h", "m", "demand"), running=0)]).hosts  # the report shows it
    assert len(host.groups) == 1
