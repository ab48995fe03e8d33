"""Running slots of tenants that wait: none has more than it may, and a single tenant has all."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.scheduling.fairness.party_order import most_running
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import make, step


def of(tenant: str, name: str, arrival: int, *, output: int = 3, priority: int = 0) -> Sequence:
    sequence = make(name, 4, output, arrival=arrival, priority=priority)
    sequence.tenant = sequence.party = tenant
    return sequence


def scheduler(running: int = 4, share: float = 1.0) -> Scheduler:
    return Scheduler(BlockManager(256), scheduler_limits(64, running, 256, tenant_share=share))


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
    for index in range(40):
        crowd = of("default", f"a{index}", index, output=90)
        crowd.party = "address 192.0.2.1"
        one.add(crowd)
    step(one)
    late = of("default", "b", 40)
    late.party = "address 192.0.2.2"
    one.add(late)
    step(one)
    assert Counter(sequence.party for sequence in one.running) == {
        "address 192.0.2.1": 7,
        "address 192.0.2.2": 1,
    }


def test_one_tenant_alone_has_all_slots_unless_it_is_told_otherwise() -> None:
    for share, expected in ((1.0, 4), (0.5, 2), (0.01, 1)):
        one = scheduler(share=share)
        for index in range(10):
            one.add(of("a", f"a{index}", index))
        step(one)
        assert running_of(one) == {"a": expected}
        for _ in range(60):
            step(one)
        assert not one.has_work


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
    for _ in range(1000):
        if not one.has_work:
            break
        step(one)
        assert all(count <= most_running(running, share) for count in running_of(one).values())
    assert all(sequence.phase is SequencePhase.ENDED for sequence in sequences)
