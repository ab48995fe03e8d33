"""Which connection is closed for a new one: the decision alone, and its bounds in any order of events."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.web import waiting_lines
from shared.web.gate import Gate
from shared.web.http_limits import HttpConnections, HttpLimits
from shared.web.waiting_lines import SETTLED_S, Lines, Waiting, first_to_go, new_lines


class Held:
    """A connection. `waits` is None while its request is under way."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate = gate
        self.lines: Lines = new_lines()
        self.waits: Waiting | None = None
        self.dropped = False

    def wait_for(self, waits: Waiting | None, now_s: float = 0.0) -> None:
        if self.waits is not None:
            self.waits.discard(self)
        self.waits = waits
        if waits is not None:
            waits.add(self, now_s)

    def expire(self, waited_for: str) -> None:
        raise AssertionError(waited_for)

    def drop(self) -> None:
        assert self.gate is not None
        self.dropped = True
        self.gate.release(self)
        self.wait_for(None)


def test_the_order_of_giving_way() -> None:
    """First settled connections by what they wait for, then answered ones, then newcomers by age."""
    lines = new_lines()
    order: list[Held] = []
    for kind, since_s in (
        (waiting_lines.LINGERING, 8.0),
        (waiting_lines.FIRST_BYTE, 3.0),
        (waiting_lines.FIRST_BYTE, 4.0),
        (waiting_lines.HANDSHAKE, 2.0),
        (waiting_lines.HEADERS, 1.0),
        (waiting_lines.IDLE, 0.0),
        (waiting_lines.IDLE, 9.9),
        (waiting_lines.UNREAD, 0.5),
        (waiting_lines.HEADERS, 9.5),
        (waiting_lines.FIRST_BYTE, 9.6),
        (waiting_lines.LINGERING, 9.7),
        (waiting_lines.HEADERS, 9.8),
    ):
        connection = Held()
        lines[kind][connection] = since_s
        order.append(connection)
    for expected in order:
        found = first_to_go(lines, 10.0, 100)
        assert found is expected
        for line in lines:
            line.pop(expected, None)
    assert first_to_go(lines, 10.0, 100) is None


def test_one_that_came_just_now_is_not_put_out_by_the_next() -> None:
    """Idle connections that were answered are closed first. Newcomers do not close each other."""
    gate = Gate(HttpConnections(http_max_connections_per_address=4), HttpLimits())
    for _ in range(4):
        idle = Held(gate)
        assert gate.admit(idle, "10.0.0.1", 0.0) is None
        idle.wait_for(gate.idle)
    batch = [Held(gate) for _ in range(3)]
    for connection in batch:
        assert gate.admit(connection, "10.0.0.1", 50.0) is None
        connection.wait_for(gate.first_byte, 50.0)
    assert not any(connection.dropped for connection in batch)
    assert gate.stats.closed_connections == {"address_gave_way": 3}


def test_one_that_has_spoken_is_not_put_out_by_those_that_never_do() -> None:
    """However fast silent connections come, they take at most half of the places from others."""
    gate = Gate(HttpConnections(http_max_connections_per_address=8), HttpLimits())
    kept = [Held(gate) for _ in range(3)]
    for connection in kept:
        assert gate.admit(connection, "10.0.0.1", 0.0) is None
        connection.wait_for(gate.idle)
    came: list[Held] = []
    for number in range(100):
        came.append(silent := Held(gate))
        now_s = number * 1e-4
        assert gate.admit(silent, "10.0.0.1", now_s) is None
        silent.wait_for((gate.first_byte, gate.headers, gate.handshake)[number % 3], now_s)
        assert not any(connection.dropped for connection in came[-5:])
    assert not any(connection.dropped for connection in kept)


@pytest.mark.parametrize("name", ["first_byte", "handshake", "headers", "idle", "unread", "lingering"])
def test_only_requests_under_way_keep_a_client_out(name: str) -> None:
    gate = Gate(HttpConnections(http_max_connections_per_address=2), HttpLimits())
    held, busy, other = Held(gate), Held(gate), Held(gate)
    for connection in (held, busy):
        assert gate.admit(connection, "10.0.0.1", 0.0) is None
    assert gate.admit(other, "10.0.0.2", 0.0) is None
    other.wait_for(gate.first_byte, 0.0)
    held.wait_for(getattr(gate, name), 0.0)
    fresh = Held(gate)
    assert gate.admit(fresh, "10.0.0.1", 0.1) is None
    assert (held.dropped, busy.dropped, other.dropped) == (True, False, False)
    fault = gate.admit(Held(gate), "10.0.0.1", 0.1)
    assert fault is not None
    assert fault.code == "address_connections"
    assert gate.open == 3


def test_the_only_connection_of_an_address_may_give_way() -> None:
    gate = Gate(HttpConnections(http_max_connections_per_address=1), HttpLimits())
    for _ in range(3):
        connection = Held(gate)
        assert gate.admit(connection, "10.0.0.1", 0.0) is None
        connection.wait_for(gate.first_byte)
        assert gate.open == 1
    connection.drop()
    assert gate.addresses == 0


_KINDS = ("first_byte", "handshake", "headers", "idle", "unread", "lingering", "paused", "")
_STEPS = st.lists(
    st.tuples(st.sampled_from(("come", "leave", *_KINDS)), st.integers(0, 2), st.integers(0, 9)), max_size=80
)


@given(_STEPS)
def test_bounds_hold_and_no_request_is_cut(steps: list[tuple[str, int, int]]) -> None:
    """At most 3 connections of an address and 7 in all. Only requests under way cause a refusal."""
    gate = Gate(HttpConnections(max_connections=7, http_max_connections_per_address=3), HttpLimits())
    indices: dict[Held, str] = {}
    now_s = 0.0
    for step, (what, address_number, which) in enumerate(steps):
        now_s += SETTLED_S / 4
        address = f"10.0.0.{address_number}"
        if what == "come":
            fresh = Held(gate)
            before = {connection: connection.waits for connection in indices}
            own = [connection for connection, of in indices.items() if of == address]
            expected = own if len(own) == 3 else list(indices) if len(indices) == 7 else []
            fault = gate.admit(fresh, address, now_s)
            gone = [connection for connection in indices if connection.dropped]
            assert len(gone) == (1 if expected and fault is None else 0)
            assert all(
                connection in expected and before[connection] not in (None, gate.paused)
                for connection in gone
            )
            if fault is None:
                indices = {c: of for c, of in indices.items() if not c.dropped} | {fresh: address}
                fresh.wait_for(gate.first_byte, now_s)
            else:
                assert expected
                assert all(connection.waits in (None, gate.paused) for connection in expected)
        elif indices:
            connection = list(indices)[(which + step) % len(indices)]
            if what == "leave":
                connection.drop()
                del indices[connection]
            else:
                connection.wait_for(getattr(gate, what) if what else None, now_s)
        assert gate.open == len(indices) <= 7
        assert max(Counter(indices.values()).values(), default=0) <= 3
        assert gate.addresses == len(set(indices.values()))
        lines = {id(line): line for connection in indices for line in connection.lines}.values()
        assert sum(map(len, lines)) == sum(connection.waits is not None for connection in indices)
        assert sum(len(getattr(gate, kind).line) for kind in _KINDS if kind) == sum(map(len, lines))
