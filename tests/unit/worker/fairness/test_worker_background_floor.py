"""Background work beside requests without end: slow, but never starved."""

from services.worker.domain.scheduling.fairness.fair_shares import FLOOR
from services.worker.domain.scheduling.sequence import SequencePhase
from shared.messages.base import BACKGROUND_PRIORITY
from tests.unit.worker.fairness.machine import Shared


def test_background_work_gets_its_floor_while_all_slots_are_wanted() -> None:
    one = Shared(running=8)
    lines = [one.add("batch", 40, 6, priority=BACKGROUND_PRIORITY) for _ in range(3)]

    def feed() -> None:
        one.keep("a", 20)
        one.keep("b", 20)

    one.run_for(60.0, feed)
    assert all(line.phase is SequencePhase.ENDED for line in lines)


def test_the_floor_is_small() -> None:
    one = Shared(running=8)

    def feed() -> None:
        one.keep("a", 20)
        while sum(s.party == "batch" for s in one.scheduler.waiting + one.scheduler.running) < 4:
            one.add("batch", 40, 6, priority=BACKGROUND_PRIORITY)

    one.run_for(10.0, feed)
    before = one.weighted("a"), one.weighted("batch")
    one.run_for(120.0, feed)
    others, batch = one.weighted("a") - before[0], one.weighted("batch") - before[1]
    assert 0.5 * FLOOR <= batch / others <= 2 * FLOOR


def test_what_is_left_over_is_all_for_background_work() -> None:
    one = Shared(running=8)
    lines = [one.add("batch", 40, 6, priority=BACKGROUND_PRIORITY) for _ in range(8)]
    while one.scheduler.has_work:
        one.step()
    assert all(line.phase is SequencePhase.ENDED for line in lines)
    assert one.scheduler.num_preemptions == 0
