"""The books of the pool of adapters: slots, bytes, orders for ranks, and pauses after failures."""

import pytest

from services.worker.domain.adapters.pool import (
    FIRST_S,
    LONGEST_S,
    MAX_NAMED,
    AdapterPool,
    LoadFailures,
    SlotOrder,
)
from tests.kits.worker.adapters.simulation import adapter


def loaded(pool: AdapterPool, number: int, num_bytes: int = 1) -> str:
    one = adapter(number, num_bytes)
    pool.begin_load(one, "t")
    pool.end_load(one.fingerprint, "", 0.0)
    return one.fingerprint


def test_an_adapter_admits_sequences_from_its_load_on() -> None:
    pool = AdapterPool(2)
    one = adapter(1)
    assert not pool.admits(one.fingerprint)
    pool.begin_load(one, "t")
    assert not pool.admits(one.fingerprint)
    with pytest.raises(ValueError, match="is not loaded"):
        pool.enter(one.fingerprint, "t", 0)
    pool.end_load(one.fingerprint, "", 1.0)
    assert pool.admits(one.fingerprint)
    assert pool.enter(one.fingerprint, "t", 0) == 0
    with pytest.raises(ValueError, match="is in use"):
        pool.evict(pool.residents[one.fingerprint])


def test_a_load_that_fails_frees_its_slot_and_its_bytes() -> None:
    pool = AdapterPool(1)
    one = adapter(1)
    pool.begin_load(one, "t")
    with pytest.raises(ValueError, match="exceeds the pool's bound"):
        pool.begin_load(adapter(2), "t")
    pool.end_load(one.fingerprint, "no such file", 1.0)
    assert pool.num_bytes == 0
    assert pool.failures.reason(one.fingerprint, 1.5) == "no such file"
    pool.begin_load(adapter(2), "t")
    assert pool.residents[adapter(2).fingerprint].slot == 0
    pool.check_invariants()


def test_a_slot_that_is_loaded_again_is_not_emptied_before() -> None:
    pool = AdapterPool(2)
    for number in (1, 2):
        loaded(pool, number)
    pool.take_orders()
    for resident in list(pool.residents.values()):
        pool.evict(resident)
    pool.begin_load(adapter(3, 2), "t")
    assert pool.take_orders() == [SlotOrder(1, None), SlotOrder(0, adapter(3, 2))]
    assert pool.take_orders() == []


def test_heartbeats_name_the_adapters_that_were_used_last() -> None:
    pool = AdapterPool(1000)
    names = [loaded(pool, number) for number in range(MAX_NAMED + 6)]
    pool.enter(names[0], "t", 0)
    shown = pool.ready_fingerprints()
    assert shown == [names[0], *reversed(names[7:])]


def test_each_failure_in_a_row_doubles_the_pause() -> None:
    failures, now = LoadFailures(), 0.0
    for pause_s in (FIRST_S, 2 * FIRST_S, 4 * FIRST_S):
        failures.add("a", "damaged", now)
        assert failures.reason("a", now + pause_s - 0.01) == "damaged"
        assert failures.reason("a", now + pause_s) == ""
        now += pause_s
    for _ in range(10):
        failures.add("a", "damaged", now)
    assert failures.reason("a", now + LONGEST_S - 0.01)
    assert not failures.reason("a", now + LONGEST_S)
    failures.forget("a")
    failures.add("a", "again", now)
    assert not failures.reason("a", now + FIRST_S)
