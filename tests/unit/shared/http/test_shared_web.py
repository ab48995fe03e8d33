"""Decisions of the HTTP edge: the client that a connection counts for, which one is closed, open files."""

import resource
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from shared.web.faults import SINGLE_HEADERS, ambiguity, answer, headers_too_large
from shared.web.gate import Gate, client_of
from shared.web.host_rules import HostRule, host_rule
from shared.web.http_limits import HttpConnections, HttpLimits
from shared.web.open_files import RESERVED, raise_limit
from shared.web.waiting_lines import Lines, new_lines
from tests.kits.held_objects import num_held


class Held:
    """A connection that records its calls."""

    def __init__(self) -> None:
        self.lines: Lines = new_lines()
        self.notices: list[str] = []

    def expire(self, waited_for: str) -> None:
        self.notices.append(waited_for)

    def drop(self) -> None:
        self.notices.append("drop")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_whose_a_connection_is(one: str, other: str, *, same: bool) -> None:
    assert (client_of(one) == client_of(other)) is same


def test_an_address_has_its_share_and_proxies_have_none() -> None:
    limits = HttpConnections(
        http_max_connections_per_address=2, http_trusted_proxies="10.1.0.0/16, 2001:db8::7"
    )
    gate = Gate(limits, HttpLimits())
    held = [Held() for _ in range(3)]
    results = [gate.admit(one, f"2001:db8:0:9::{index}", 10.0) for index, one in enumerate(held)]
    assert [fault.code if fault else "" for fault in results] == ["", "", "address_connections"]
    assert all(gate.admit(Held(), "10.1.2.3", 10.0) is None for _ in range(9))
    assert all(gate.admit(Held(), "::ffff:10.1.2.3", 10.0) is None for _ in range(9))
    assert all(gate.admit(Held(), "2001:db8::7", 10.0) is None for _ in range(9))
    gate.release(held[0])
    gate.release(held[0])
    assert gate.admit(held[2], "2001:db8:0:9::3", 10.0) is None
    assert gate.open == 2 + 27


def test_who_has_waited_longest_without_a_request_gives_way() -> None:
    gate = Gate(HttpConnections(max_connections=3), HttpLimits())
    silent, idle, busy = Held(), Held(), Held()
    for one in (idle, silent, busy):
        assert gate.admit(one, "10.0.0.1", 10.0) is None
    gate.idle.add(idle, 0.0)
    gate.first_byte.add(silent, 5.0)
    assert gate.admit(Held(), "10.0.0.2", 10.0) is None
    assert (silent.notices, idle.notices, busy.notices) == (["drop"], [], [])
    gate.release(silent)
    gate.first_byte.discard(silent)
    gate.idle.discard(idle)
    fault = gate.admit(Held(), "10.0.0.2", 10.0)
    assert fault is not None
    assert fault.code == "connections"
    assert gate.stats.refused_connections == {"connections": 1}


def test_deadlines_are_reported_once_they_are_over() -> None:
    gate = Gate(HttpConnections(), HttpLimits(http_headers_s=2.0))
    early, late = Held(), Held()
    gate.headers.add(early, 0.0)
    gate.headers.add(late, 1.0)
    gate.expire(1.9)
    assert not early.notices
    gate.expire(2.5)
    assert (early.notices, late.notices) == (["headers"], [])


def test_networks_are_checked_at_the_start() -> None:
    with pytest.raises(ValidationError, match="http_trusted_proxies"):
        HttpConnections(http_trusted_proxies="10.0.0.0/8, proxy.example")


@pytest.mark.parametrize(
    ("setting", "bound", "has_keys", "host", "allowed"),
    [
        ("", "127.0.0.1", True, b"api.example", False),
        ("", "10.0.0.5", True, b"api.example", True),
        ("", "10.0.0.5", False, b"api.example", False),
        ("", "10.0.0.5", False, b"gateway:8000", True),
        ("", "10.0.0.5", False, b"10.0.0.5:8000", True),
        ("", "::1", False, b"[::1]:8000", True),
        ("", "::1", False, b"[::1", False),
        ("api.example", "10.0.0.5", True, b"127.0.0.1", False),
        ("*.example", "10.0.0.5", True, b"evilexample", False),
    ],
)
def test_names(setting: str, bound: str, host: bytes, *, has_keys: bool, allowed: bool) -> None:
    assert host_rule(setting, bound, has_keys=has_keys).allows(host) is allowed


def test_many_names_are_not_remembered() -> None:
    rule = HostRule(frozenset({"a"}), literals=True, single=False)
    hosts: list[object] = [b"h%d.example" % number for number in range(5000)]
    assert not any(map(rule.allows, hosts))  # type: ignore[arg-type]
    assert 0 < num_held(hosts) <= 256 + 1  # one may be held by the code that counts lines for coverage


def test_an_ambiguity_names_its_header() -> None:
    fault = ambiguity([(b"host", b"a"), (b"host", b"a")], b"/", "1.1", SINGLE_HEADERS)
    assert fault is not None
    assert "host" in fault.message
    assert (
        ambiguity([(b"host", b"a"), (b"accept", b"a"), (b"accept", b"b")], b"/", "1.1", SINGLE_HEADERS)
        is None
    )
    assert ambiguity([], b"/", "1.0", SINGLE_HEADERS) is None
    assert answer(headers_too_large(HttpLimits())).startswith(
        b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    )


@pytest.fixture
def soft_limit() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
    yield low
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(soft_limit: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert raise_limit(100) == 100
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft_limit
    assert raise_limit(2000) == 2000
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 2000 + RESERVED
    if hard != resource.RLIM_INFINITY:
        assert raise_limit(hard) == hard - RESERVED
