"""The estimate of another clock's offset from round trips of pings."""

import random

from shared.telemetry.clock_estimate import DRIFT, ClockEstimate, ClockOffset, RoundTrip


def trip(at_ns: int, ahead_ns: int, out_ns: int, back_ns: int, held_ns: int = 100) -> RoundTrip:
    """A ping to a clock that is ahead, with those times on the way."""
    received = at_ns + out_ns
    return RoundTrip(at_ns, received + ahead_ns, received + held_ns + ahead_ns, received + held_ns + back_ns)


def test_the_shortest_ways_of_different_pings_bound_the_offset_together() -> None:
    clock = ClockEstimate()
    assert clock.offset(0) is None
    clock.add(trip(0, 5_000_000, 10_000, 90_000))
    assert clock.offset(100_100) == ClockOffset(4_960_000, 50_000)
    clock.add(trip(200_000, 5_000_000, 80_000, 12_000))
    found = clock.offset(292_100)
    assert found is not None
    assert abs(found.offset_ns - 5_000_000) <= found.error_ns <= 11_100


def test_the_true_offset_is_always_within_the_bound_also_of_clocks_that_drift() -> None:
    drawn = random.Random(5)
    for _ in range(200):
        clock, ahead, drift, now = ClockEstimate(), drawn.randint(-(10**12), 10**12), 0.0, 0
        for _ in range(100):
            passed = drawn.randint(10**5, 10**9)
            now += passed
            drift += passed * drawn.uniform(-DRIFT, DRIFT)
            out, back = drawn.randint(1000, 10**6), drawn.randint(1000, 10**6)
            clock.add(trip(now, ahead + int(drift), out, back))
        found = clock.offset(now + 2 * 10**6)
        assert found is not None
        assert abs(found.offset_ns - ahead - drift) <= found.error_ns + 2 * 10**6 * DRIFT


def test_a_clock_that_was_set_is_followed() -> None:
    clock = ClockEstimate()
    clock.add(trip(0, 10**9, 10_000, 10_000))
    clock.add(trip(10**6, -(10**9), 10_000, 10_000))
    found = clock.offset(10**6 + 20_100)
    assert found is not None
    assert abs(found.offset_ns + 10**9) <= found.error_ns < 11_000
