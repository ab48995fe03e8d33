"""Fetches run beside the steps, but never write to blocks of an outstanding step or copy."""

import random
from collections import deque

import pytest

from services.worker.domain.blocks.fetches import BlockFetch
from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.transfer_costs import TransferCostModel
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.kv_messages import FetchBlocks
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.hash_engine import EOS, VOCAB, HashEngine, alone
from tests.kits.engine.kv_moves import FakeBlocks, names, rank
from tests.kits.worker.options import kv_store, scheduler_limits
from tests.kits.worker.scheduler import Output

NAMES = BlockNames("f", "fp32")


class Ranks:
    """Ranks that start a plan only on `compute`, and a fetch as soon as its `after_step` has begun."""

    def __init__(self, num_blocks: int, *, run_ahead: int = 1, budget: int = 64) -> None:
        self.engine = HashEngine(num_blocks)
        self.behind = WriteBehind()
        self.behind.enabled = True
        self.scheduler = Scheduler(
            BlockManager(num_blocks),
            scheduler_limits(budget, 8, 1000),
            NAMES,
            write_behind=self.behind,
            costs=TransferCostModel(budget, "always"),
        )
        self.run_ahead = run_ahead
        self.begun = 0
        self.plans: deque[StepPlan] = deque()
        self.fetches: list[BlockFetch] = []
        self.outputs: dict[str, Output] = {}
        self.fetched = 0

    def submit(self) -> None:
        while len(self.plans) <= self.run_ahead:
            plan = self.scheduler.plan()
            self.fetches += self.scheduler.take_fetches()
            self.scheduler.check_invariants()
            if plan.is_empty:
                return
            self.plans.append(plan)

    def compute(self) -> None:
        if not self.plans:
            return
        plan = self.plans.popleft()
        result = self.engine.compute(plan)
        self.begun = plan.step_id
        for advance in self.scheduler.apply(result):
            one, reason = advance.sequence, advance.finish_reason
            if advance.sampled.error or reason:
                self.outputs[one.request_id] = (one.tokens[one.prompt_len :], reason or "error")
        self.scheduler.check_invariants()

    def deliver(self, chance: float = 1.0, rng: random.Random | None = None) -> None:
        for fetch in list(self.fetches):
            if fetch.after_step <= self.begun and (rng is None or rng.random() < chance):
                self.fetches.remove(fetch)
                count = self.engine.fetch(fetch.names, fetch.blocks)
                self.scheduler.fetched(fetch.fetch_id, count)
                self.scheduler.check_invariants()
                self.fetched += count
        self.behind.done(list(self.engine.store), [])

    def finish(self) -> None:
        for _ in range(5000):
            self.submit()
            self.deliver()
            self.compute()
            self.deliver()
            if not self.scheduler.has_work and not self.plans and not self.fetches:
                return
        raise AssertionError("it never ends")


def sequence(name: str, tokens: list[int], max_tokens: int, stored: int = 0, priority: int = 0) -> Sequence:
    one = Sequence(
        request_id=name,
        choice=0,
        tokens=tokens.copy(),
        prompt_len=len(tokens),
        max_tokens=max_tokens,
        sampling=EngineSampling(temperature=0),
        eos_ids=frozenset({EOS}),
        priority=priority,
    )
    one.stored = stored
    return one


def filled(prompt: list[int]) -> dict[bytes, list[int | None]]:
    source = Ranks(64)
    source.scheduler.add(sequence("s", prompt, 1))
    source.finish()
    return source.engine.store


def test_a_step_that_ranks_still_have_before_them_does_not_write_over_what_was_fetched() -> None:
    prompt = [4] * 64 + [1]
    ranks = Ranks(5)
    ranks.engine.store = filled(prompt)
    ranks.behind.writes = False
    ranks.scheduler.add(cancelled := sequence("c", [9] * 64, 10))
    ranks.submit()
    ranks.scheduler.end(cancelled)
    ranks.scheduler.add(sequence("a", prompt, 3, stored=4))
    ranks.submit()
    assert len(ranks.plans) == 2
    ranks.deliver()
    ranks.finish()
    assert ranks.fetched == 4
    assert ranks.outputs["a"] == alone(prompt, 3, 0)


def test_what_a_plan_copies_for_the_store_is_copied_before_a_fetch_writes_there() -> None:
    prompt, other = [4] * 64 + [1], [9] * 64 + [2]
    ranks = Ranks(5)
    ranks.scheduler.add(sequence("o", other, 1))
    ranks.submit()
    ranks.compute()  # its blocks are free, but not yet copied
    ranks.engine.store = filled(prompt)
    ranks.scheduler.add(sequence("a", prompt, 3, stored=4))
    ranks.submit()
    ranks.deliver()
    ranks.finish()
    right = filled(other)
    assert {name: ranks.engine.store[name] for name in right} == right
    assert ranks.outputs["a"] == alone(prompt, 3, 0)


def test_a_fetch_without_a_sequence_waits_for_the_steps_as_well() -> None:
    prompt = [4] * 64 + [1]
    ranks = Ranks(5)
    ranks.engine.store = filled(prompt)
    ranks.behind.writes = False
    ranks.scheduler.add(cancelled := sequence("c", [9] * 64, 10))
    ranks.submit()
    ranks.scheduler.end(cancelled)
    assert ranks.scheduler.queues.fetches.begin_alone(NAMES.of(sequence("x", prompt, 1)))
    assert ranks.scheduler.has_work
    ranks.submit()
    ranks.deliver()
    ranks.finish()
    ranks.scheduler.add(after := sequence("a", prompt, 3))
    ranks.finish()
    assert after.cached_tokens == 64
    assert ranks.outputs["a"] == alone(prompt, 3, 0)


@pytest.mark.parametrize("seed", range(12))
def test_fetches_and_steps_in_any_order_change_no_token(seed: int) -> None:
    rng = random.Random(seed)
    groups = [Ranks(rng.choice([14, 24]), run_ahead=rng.choice([0, 1]), budget=32) for _ in range(2)]
    groups[1].engine.store = groups[0].engine.store
    prefixes = [[rng.randrange(1, VOCAB) for _ in range(rng.randrange(20, 90))] for _ in range(3)]
    expected: dict[str, Output] = {}
    cancelled: set[str] = set()
    live: dict[str, tuple[Ranks, Sequence]] = {}
    for number in range(1500):
        ranks = groups[number % 2]
        if rng.random() < 0.3 and len(expected) < 60:
            tokens = rng.choice(prefixes) + [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 60))]
            stored = rng.randrange(len(tokens) // 16 + 1)  # a guess that may be wrong
            one = sequence(f"r{len(expected)}", tokens, rng.randrange(1, 40), stored, rng.randrange(3))
            live[one.request_id] = (ranks, one)
            expected[one.request_id] = alone(tokens, one.max_tokens, 0)
            ranks.scheduler.add(one)
        for act in rng.sample(("submit", "deliver", "compute"), 3):
            if act == "deliver":
                ranks.deliver(0.4, rng)
            else:
                getattr(ranks, act)()
        if live and rng.random() < 0.06:
            name = rng.choice(list(live))
            owner, one = live[name]
            if name not in owner.outputs:
                owner.scheduler.end(one)
                cancelled.add(name)
    for ranks in groups:
        ranks.finish()
        assert ranks.scheduler.blocks.num_used == 0
        for name, output in ranks.outputs.items():
            assert output == expected[name], name
    assert sum(ranks.fetched for ranks in groups) > 3


def test_a_rank_does_not_begin_with_a_fetch_before_its_step() -> None:
    no_server = kv_store("redis://127.0.0.1:1/0")
    with rank(no_server, FakeBlocks(range(1))) as one:
        for fetch_id, step in ((1, 2), (2, 3), (3, 0)):
            order = FetchBlocks(fetch_id=fetch_id, blocks=[1], names=names(1)[0], after_step=step)
            one.mover.fetch(order)
        one.reports.until(lambda: 3 in one.reports.fetched)
        one.mover.start_due_fetches(1)
        assert set(one.reports.fetched) == {3}
        one.mover.start_due_fetches(2)
        one.reports.until(lambda: 1 in one.reports.fetched)
        assert set(one.reports.fetched) == {1, 3}
        one.mover.start_due_fetches(4)
        one.reports.until(lambda: 2 in one.reports.fetched)
        one.mover.fetch(FetchBlocks(fetch_id=4, blocks=[1], names=names(1)[0], after_step=4))
        one.reports.until(lambda: 4 in one.reports.fetched)
