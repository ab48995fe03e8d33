"""Which requests of services outside count as running, and when their units come back. Virtual time."""

from services.router.domain.running_units import UNHEARD_S, Claim, RunningUnits
from shared.limits.lease import Lease
from shared.limits.pools import Pool, PoolName

LEASE = Lease(Pool(PoolName("t", "", "running", "running"), 9, "UTC"), 0.0)
KEY, OTHER = ("t", "r", 0), ("t", "r2", 0)


def counted() -> tuple[RunningUnits, list[int]]:
    """Units, and what is given back of them."""
    back: list[int] = []
    return RunningUnits(lambda claim: back.extend(units for _, units, _ in claim), "_INBOX.router.i"), back


def claim(units: int) -> Claim:
    return [(LEASE, units, 0)]


def test_a_unit_comes_back_once() -> None:
    units, back = counted()
    unit = units.hold(KEY, claim(1), 0.0)
    unit.end()
    unit.end()
    units.end(KEY)
    assert back == [1]
    assert not len(units)


def test_copies_count_once() -> None:
    units, back = counted()
    first = units.hold(KEY, claim(1), 0.0)
    assert units.hold(KEY, claim(2), 0.0) is first
    assert back == [2]


def test_a_refused_copy_does_not_end_what_a_group_has() -> None:
    units, back = counted()
    unit = units.hold(KEY, claim(1), 0.0)
    unit.note_at("g0", "i0", 0.0)
    unit.note_refused()
    assert units.find(KEY) is unit
    unit.note_returned()
    unit.note_refused()
    assert back == [1]


def test_a_lost_leader_ends_its_own_only() -> None:
    units, back = counted()
    units.hold(KEY, claim(1), 0.0).note_at("g0", "i0", 0.0)
    units.hold(OTHER, claim(2), 0.0).note_at("g0", "i1", 0.0)
    units.end_group("g0", "i0")
    assert back == [1]
    assert units.find(OTHER)


def test_what_no_leader_reports_ends() -> None:
    units, back = counted()
    units.hold(KEY, claim(1), 0.0)
    reported = units.hold(OTHER, claim(2), 0.0)
    reported.note_at("g0", "i0", 5.0)
    units.expire(UNHEARD_S - 0.1)
    assert len(units) == 2
    units.expire(UNHEARD_S)
    assert back == [1]
    units.expire(UNHEARD_S + 5.0)
    assert back == [1, 2]
