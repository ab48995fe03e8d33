"""Steps of several parties in virtual time: shares of tokens, priorities, newcomers, prefixes."""

import pytest

from services.worker.domain.scheduling.fairness.party_order import AHEAD
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from tests.kits.worker.scheduler import NAMES
from tests.unit.worker.fairness.machine import BUDGET, ROW_S, TOKEN_S, Shared

LONG, OUTPUT = 200, 12


def percentile(values: list[float], share: float = 0.99) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_two_that_flood_are_served_by_weight_and_within_the_bound(weight: float) -> None:
    one = Shared(running=16)

    def feed() -> None:
        one.keep("many", 40, LONG, OUTPUT)
        one.keep("few", 24, 40, OUTPUT, weight=weight)

    one.run_for(10.0, feed)
    one.history.clear()
    one.run_for(60.0, feed)
    gaps = [seen["few"] / weight - seen["many"] for _, seen in one.history]
    # U: prompts of one step, and what the sequences that run may still decode
    decode = ROW_S / TOKEN_S
    bound = 2 * (BUDGET + 16 * OUTPUT * decode + BUDGET)
    assert max(gaps) - min(gaps) <= bound
    few = one.history[-1][1]["few"] - one.history[0][1]["few"]
    many = one.history[-1][1]["many"] - one.history[0][1]["many"]
    assert few / many == pytest.approx(weight, rel=0.15)


def test_a_request_of_one_that_behaves_waits_little_longer_beside_a_flood() -> None:
    waits = []
    for floods in (False, True):
        one = Shared(running=32, share=0.5)

        def feed(one: Shared = one, floods: bool = floods) -> None:
            one.keep("good", 1, 64, 8)
            if floods:
                one.keep("flood", 64, LONG, OUTPUT)

        one.run_for(40.0, feed)
        waits.append(sorted(wait for name, wait in one.waits.items() if name.startswith("good")))
    calm, flooded = (found[len(found) // 2] for found in waits)
    assert flooded <= 2 * calm
    assert percentile(waits[1]) <= 2 * percentile(waits[0])


def test_a_lone_party_gets_all_and_is_served_as_without_counting() -> None:
    one = Shared(running=8)
    for number in range(30):
        one.add("a", 40, 4, priority=number % 3)
    admitted = list[Sequence]()
    while one.scheduler.has_work:
        before = set(map(id, one.scheduler.running))
        one.step()
        admitted += [s for s in one.scheduler.running if id(s) not in before]  # in order
    order = [one.order for one in dict.fromkeys(admitted)]
    assert order == sorted(order)
    assert one.scheduler.queues.fair.shares() == []


def test_a_priority_of_one_party_goes_before_none_of_another() -> None:
    one = Shared(running=2)
    for _ in range(20):
        one.add("urgent", 64, 8, priority=9)
    one.step()
    low = one.add("plain", 64, 8)
    for _ in range(60):
        one.step()
        if low.phase is SequencePhase.RUNNING:
            break
    assert low.phase is SequencePhase.RUNNING
    assert one.scheduler.queues.waiting_of["urgent"]
    one.add("urgent", 64, 8, priority=10)
    one.step()
    assert low.num_preemptions == 0


def test_a_higher_priority_takes_the_slot_of_a_lower_one_of_its_own_party() -> None:
    one = Shared(running=2)
    low, other = one.add("a", 32, 400), one.add("b", 32, 400)
    for _ in range(4):
        one.step()
    high = one.add("a", 32, 8, priority=5)
    one.add("b", 32, 8)
    one.step()
    assert (low.phase, other.phase, high.phase) == (
        SequencePhase.WAITING,
        SequencePhase.RUNNING,
        SequencePhase.RUNNING,
    )


def hit_rate(parties: tuple[str, str, str]) -> float:
    """The share of prompts that the cache has, of requests with six texts that come in turns."""
    one = Shared(running=8, blocks=160, names=NAMES)
    texts = [[1000 * text + index for index in range(96)] for text in range(6)]
    number = queried = cached = 0
    for _ in range(600):
        while len(one.scheduler.waiting) + len(one.scheduler.running) < 24:
            text = (number * 7) % 6
            own = [50_000 + 40 * number + index for index in range(40)]
            one.add(parties[text % 3], output=8, tokens=texts[text] + own)
            number += 1
        one.step()
        new = one.scheduler.admission.take_counts()
        queried, cached = queried + new[0], cached + new[1]
    return cached / queried


def test_prefixes_are_found_as_in_the_order_of_arrival() -> None:
    arrival = hit_rate(("a", "a", "a"))
    assert 0.2 < arrival < 0.75
    assert hit_rate(("a", "b", "c")) >= 0.95 * arrival


def test_the_first_of_a_party_is_not_passed_for_ever_by_longer_prefixes() -> None:
    one = Shared(running=1, names=NAMES)
    text = [7000 + index for index in range(64)]
    one.add("b", 64, 2)
    one.add("a", output=2, tokens=[*text, 1])
    one.step()
    lonely = one.add("a", 64, 2)
    for number in range(3 * AHEAD):
        one.add("a", output=2, tokens=[*text, 10 + number])
        one.add("b", 64, 2)
    went = 0
    while lonely.phase is SequencePhase.WAITING:
        one.step()
        went += 1
        assert went < 200
    waiting = one.scheduler.queues.waiting_of["a"]
    assert len(waiting) >= 2 * AHEAD
