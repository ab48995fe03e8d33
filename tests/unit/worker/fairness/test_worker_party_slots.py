"""Running slots of tenants that wait: beside others none has more than it may, and alone one has all."""

import math
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.scheduling.fairness.slot_share import KEEP_S, SHARE_BESIDE_OTHERS, SlotShare
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import make, step
from tests.unit.worker.fairness.machine import Shared


def of(tenant: str, name: str, arrival: int, *, output: int = 3, priority: int = 0) -> Sequence:
    sequence = make(name, 4, output, arrival=arrival, priority=priority)
    sequence.tenant = sequence.party = tenant
    return sequence


def scheduler(running: int = 4, share: float = 1.0, clock: Callable[[], float] = time.monotonic) -> Scheduler:
    limits = scheduler_limits(64, running, 256, tenant_share=share)
    return Scheduler(BlockManager(256), limits, clock=clock)


def running_of(one: Scheduler) -> dict[str, int]:
    return dict(Counter(sequence.tenant for sequence in one.running))


def test_a_tenant_that_comes_late_gets_the_first_slot_that_becomes_free() -> None:
    one = scheduler()
    crowd = [of("a", f"a{index}", index, output=3 + index) for index in range(40)]
    late = of("b", "b", 40)
    for sequence in [*crowd, late]:
        one.add(sequence)
    while late.phase is not SequencePhase.ENDED:
        step(one)
    ended = sum(sequence.phase is SequencePhase.ENDED for sequence in crowd)
    assert ended <= 4  # those that ran when it arrived, not all 40 that arrived before it


def test_slots_that_become_free_go_to_each_tenant_alike() -> None:
    one = scheduler(running=6)
    for index in range(60):
        one.add(of("a", f"a{index}", index))
    for index in range(60):
        one.add(of("b", f"b{index}", 60 + index))
        one.add(of("c", f"c{index}", 120 + index))
    for _ in range(8):
        step(one)
    assert running_of(one) == {"a": 2, "b": 2, "c": 2}


def test_addresses_of_one_tenant_count_like_tenants() -> None:
    one = scheduler(running=8, share=0.875)

    def other(name: str, arrival: int) -> None:
        sequence = of("default", name, arrival)
        sequence.party = "address 192.0.2.2"
        one.add(sequence)

    other("early", 0)
    for index in range(40):
        crowd = of("default", f"a{index}", 1 + index, output=90)
        crowd.party = "address 192.0.2.1"
        one.add(crowd)
    while any(sequence.party == "address 192.0.2.2" for sequence in one.running) or not one.running:
        step(one)
    step(one)
    other("late", 50)
    step(one)
    assert Counter(sequence.party for sequence in one.running) == {
        "address 192.0.2.1": 7,
        "address 192.0.2.2": 1,
    }


@pytest.mark.parametrize(("share", "beside"), [(1.0, 4), (0.5, 2), (0.01, 1)])
def test_a_tenant_has_its_part_beside_others_and_all_slots_alone(share: float, beside: int) -> None:
    now = [0.0]
    one = scheduler(share=share, clock=lambda: now[0])
    for index in range(40):
        one.add(of("a", f"a{index}", index, output=50))
    step(one)
    assert running_of(one) == {"a": 4}
    one.add(of("b", "b", 40, output=1))
    while any(sequence.tenant == "b" for sequence in one.waiting + one.running):
        step(one)
    while len(one.running) > beside:
        step(one)
    for _ in range(5):
        step(one)
    assert running_of(one) == {"a": beside}
    now[0] += KEEP_S
    step(one)
    assert running_of(one) == {"a": 4}


def test_a_part_is_at_least_one_slot_and_at_most_all() -> None:
    for running, share, most in ((4, 0.01, 1), (1, 0.5, 1), (16, SHARE_BESIDE_OTHERS, 14), (3, 1.0, 3)):
        slots = SlotShare(running, share)
        assert slots.most == running
        slots.see(several=True, now=5.0)
        slots.see(several=False, now=5.0 + KEEP_S - 0.1)
        assert slots.most == most
        slots.see(several=False, now=5.0 + KEEP_S)
        assert slots.most == running


def waits_of_a_newcomer(share: float) -> list[float]:
    """Seconds to first tokens of a tenant that asks twice a second, while another one floods."""
    shared = Shared(running=16, share=share)
    due = [1.0]

    def feed() -> None:
        shared.keep("flood", 40, prompt=64, output=400)
        if shared.now >= due[0]:
            due[0] += 0.5
            shared.add("small", 32, 4)

    shared.run_for(40.0, feed)
    return sorted(wait for name, wait in shared.waits.items() if name.startswith("small"))


def test_slots_beside_others_spare_a_newcomer_the_wait_for_the_end_of_an_answer() -> None:
    kept, none = waits_of_a_newcomer(SHARE_BESIDE_OTHERS), waits_of_a_newcomer(1.0)
    assert kept[len(kept) // 2] < none[len(none) // 2] / 4


def test_an_urgent_sequence_whose_tenant_may_have_no_more_displaces_none() -> None:
    one = scheduler(running=2, share=0.5)
    first, other = of("a", "a0", 0, output=50), of("b", "b0", 1, output=50)
    for sequence in (first, other, of("a", "a1", 2, priority=5)):
        one.add(sequence)
    for _ in range(5):
        step(one)
    assert one.num_preemptions == 0
    assert running_of(one) == {"a": 1, "b": 1}


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 6), st.integers(0, 1)), min_size=1, max_size=40
    ),
    st.integers(1, 8),
    st.floats(0.05, 1.0),
)
def test_every_sequence_ends_and_no_tenant_has_more_than_it_may(
    arrivals: list[tuple[str, int, int]], running: int, share: float
) -> None:
    one = scheduler(running, share)
    sequences = [
        of(tenant, str(index), index, output=output, priority=priority)
        for index, (tenant, output, priority) in enumerate(arrivals)
    ]
    for sequence in sequences:
        one.add(sequence)
    several = len({sequence.party for sequence in sequences}) > 1
    most = min(running, max(1, math.ceil(running * share))) if several else running
    for _ in range(1000):
        if not one.has_work:
            break
        step(one)
        assert all(count <= most for count in running_of(one).values())
    assert all(sequence.phase is SequencePhase.ENDED for sequence in sequences)
