"""Limits of KV caches at the agent: what they save counts when it was measured, and more of them at once."""

from typing import Any

import pytest

from cli.stack.agent.hosted import CommandRefused, HostedModels
from shared.messages import HostedGroup, KVLimited, LimitKV
from tests.unit.cli.agent.test_cli_hosted_models import BUDGET, FIRST, FURTHER, MIB, hosted, start

MOST, LEAST = 300 * MIB, 50 * MIB


def said(limit: int = MOST, needed: int = 0) -> KVLimited:
    return KVLimited(
        group="g0",
        limit_bytes=limit,
        most_bytes=MOST,
        most_tokens=3000,
        least_bytes=LEAST,
        needed_bytes=needed,
    )


def serving(**entry: Any) -> HostedModels:
    """A group of `a` whose leader has said what its cache takes."""
    host = hosted(**entry)
    start(host, "a")
    host.note_ready("g0", 1.0)
    host.note_kv("g0", said())
    return host


def limit(host: HostedModels, limit_bytes: int, epoch: int = 1) -> None:
    host.resize(LimitKV(group="g0", limit_bytes=limit_bytes, epoch=epoch))


def reported(host: HostedModels, now: float = 9.0) -> HostedGroup:
    return next(group for group in host.report(now).groups if group.group == "g0")


def test_a_lower_limit_counts_when_it_was_measured() -> None:
    host = serving()
    kv = host.groups["g0"].kv
    limit(host, 100 * MIB)
    host.groups["g0"].measured_bytes = FIRST - 150 * MIB
    assert kv.confirm(100 * MIB, 5.0)
    assert not host.is_as_planned("g0")
    assert (reported(host).kv_bytes, reported(host).charged_bytes) == (MOST, FIRST)
    host.groups["g0"].measured_bytes = FIRST - 250 * MIB
    assert host.is_as_planned("g0")
    kv.settle()
    group = reported(host)
    assert (group.kv_bytes, group.charged_bytes, group.kv_age_ms) == (100 * MIB, FIRST - 200 * MIB, 4000)
    host.groups["g0"].measured_bytes = FIRST - 100 * MIB  # it takes more than its limit
    assert reported(host).charged_bytes == FIRST - 100 * MIB


def test_a_higher_limit_counts_before_the_leader_hears_of_it() -> None:
    host = serving()
    host.note_kv("g0", said(100 * MIB))
    assert reported(host).charged_bytes == FIRST - 200 * MIB
    start(host, "b")
    with pytest.raises(CommandRefused, match="it wants 900 MiB more"):
        limit(host, 1000 * MIB)
    limit(host, 0)
    assert (reported(host).kv_bytes, reported(host).charged_bytes) == (100 * MIB, FIRST)
    host.groups["g0"].kv.cancel()
    assert reported(host).charged_bytes == FIRST - 200 * MIB
    limit(host, 200 * MIB)
    assert host.groups["g0"].kv.confirm(200 * MIB, 7.0)
    host.groups["g0"].kv.settle()
    assert (reported(host).kv_bytes, reported(host).kv_age_ms) == (200 * MIB, 2000)
    host.free_bytes, host.groups["g0"].measured_bytes = 0, FIRST
    with pytest.raises(CommandRefused, match="it wants 100 MiB more, and 0 MiB are left"):
        limit(host, MOST)


def test_memory_of_a_smaller_cache_is_for_another_group() -> None:
    host = serving()
    host.free_bytes, host.groups["g0"].measured_bytes = BUDGET - FIRST - 300 * MIB, 300 * MIB
    host.free_bytes = FURTHER + FIRST - 300 * MIB - 200 * MIB
    with pytest.raises(CommandRefused, match="are left"):
        start(host, "a", 1)
    limit(host, 100 * MIB)
    with pytest.raises(CommandRefused, match="are left"):
        start(host, "a", 1)
    host.groups["g0"].kv.confirm(100 * MIB, 5.0)
    host.groups["g0"].kv.settle()
    assert start(host, "a", 1) == "g1"


@pytest.mark.parametrize(("tokens", "least"), [(0, LEAST), (400, LEAST), (1500, 150 * MIB), (9000, MOST)])
def test_a_model_keeps_its_minimum(tokens: int, least: int) -> None:
    host = serving(kv_cache_min_tokens=tokens) if tokens else serving()
    assert reported(host).kv_least_bytes == least
    with pytest.raises(CommandRefused, match="it may have"):
        limit(host, least - 1)
    if least < MOST:
        limit(host, least)


def test_a_limit_that_its_requests_do_not_let_it_have_changes_nothing() -> None:
    host = serving()
    limit(host, LEAST)
    host.note_kv("g0", said(MOST, needed=MOST))
    assert not host.groups["g0"].kv.confirm(MOST, 5.0)
    group = reported(host)
    assert (group.kv_bytes, group.kv_needed_bytes, group.kv_age_ms) == (MOST, MOST, 9000)


def test_a_leader_is_told_its_limit_again() -> None:
    host = serving()
    kv = host.groups["g0"].kv
    assert kv.repeated_bytes == 0
    limit(host, LEAST)
    assert kv.confirm(LEAST, 5.0)
    assert kv.repeated_bytes == LEAST
    host.note_kv("g0", said())  # an answer to the question before
    assert (kv.limit_bytes, kv.repeated_bytes) == (MOST, LEAST)
    kv.settle()
    host.note_kv("g0", said(60 * MIB))  # it had started again, with more in use
    assert (kv.limit_bytes, kv.repeated_bytes) == (60 * MIB, 60 * MIB)


def test_a_leader_that_does_not_answer_gives_nothing_until_it_does() -> None:
    host = serving()
    limit(host, LEAST)
    host.groups["g0"].kv.cancel()
    assert (reported(host).kv_most_bytes, reported(host).charged_bytes) == (0, FIRST)
    host.note_kv("g0", said())
    assert (reported(host).kv_most_bytes, reported(host).kv_bytes) == (MOST, MOST)


def test_groups_that_cannot_be_resized() -> None:
    host = hosted()
    with pytest.raises(CommandRefused, match="does not run here"):
        limit(host, LEAST)
    start(host, "a")
    with pytest.raises(CommandRefused, match="keeps its size"):
        limit(host, LEAST)
    host.note_kv("g0", said())
    limit(host, LEAST)
    with pytest.raises(CommandRefused, match="is being resized"):
        limit(host, MOST)
    with pytest.raises(CommandRefused, match="epoch 0 is behind 1"):
        limit(host, MOST, epoch=0)
