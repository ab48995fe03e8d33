"""Fetches of KV blocks from the store, with an engine whose tokens depend on every block."""

import random

import pytest

from services.worker.domain.blocks.fetches import BlockFetch
from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.transfer_costs import RETRY_S, TransferCostModel
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import BLOCK_SIZE
from tests.kits.engine.hash_engine import EOS, VOCAB, HashEngine, alone, with_window
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import Output, Run

NAMES = BlockNames("f", "fp32")


def make(
    num_blocks: int, *, mode: str = "always", run_ahead: int = 1, budget: int = 64, window: int = 0
) -> tuple[Run, HashEngine]:
    limits, behind = scheduler_limits(budget, 8, 1000), WriteBehind()
    blocks, engine = with_window(num_blocks, limits, window)
    behind.enabled = True
    scheduler = Scheduler(
        blocks,
        limits,
        NAMES,
        write_behind=behind,
        costs=TransferCostModel(budget, mode),  # type: ignore[arg-type]
    )
    return Run(scheduler, engine.compute, run_ahead), engine


def sequence(request_id: str, tokens: list[int], max_tokens: int, priority: int = 0) -> Sequence:
    return Sequence(
        request_id=request_id,
        choice=0,
        tokens=tokens.copy(),
        prompt_len=len(tokens),
        max_tokens=max_tokens,
        sampling=EngineSampling(temperature=0),
        eos_ids=frozenset({EOS}),
        priority=priority,
    )


def fill_store(engine: HashEngine, run: Run) -> None:
    """Reports all blocks that the plans copied as stored."""
    run.scheduler.write_behind.done(list(engine.store), [])


def deliver(run: Run, engine: HashEngine, fetch: BlockFetch) -> int:
    count = engine.fetch(fetch.names, fetch.blocks, fetch.sliding)
    run.scheduler.fetched(fetch.fetch_id, count)
    run.scheduler.check_invariants()
    return count


def finish(run: Run, engine: HashEngine) -> int:
    """Runs to the end, completing each fetch at once; returns the number of fetched blocks."""
    total = 0
    for _ in range(10_000):
        run.step()
        for fetch in run.scheduler.take_fetches():
            total += deliver(run, engine, fetch)
        fill_store(engine, run)
        if not run.scheduler.has_work and not run.results:
            return total
    raise AssertionError("it never ends")


def test_another_group_continues_from_the_store() -> None:
    prompt = [1 + i % (VOCAB - 1) for i in range(100)]
    first, engine = make(64)
    first.scheduler.add(sequence("a", prompt, 40))
    finish(first, engine)
    expected = alone(prompt, 40, 0)
    assert first.outputs["a"] == expected
    full = (len(prompt) + len(expected[0]) - 1) // BLOCK_SIZE
    assert len(engine.store) == full

    other, cold = make(64)
    cold.store = engine.store
    longer = prompt + expected[0] + [5, 6, 7]
    asking = sequence("b", longer, 10)
    asking.stored = full
    other.scheduler.add(asking)
    assert finish(other, cold) == full
    assert asking.fetched_tokens == asking.cached_tokens == full * BLOCK_SIZE
    assert cold.num_computed <= len(longer) - full * BLOCK_SIZE + 10
    assert other.outputs["b"] == alone(longer, 10, 0)


def test_missing_blocks_are_computed_and_written_anew() -> None:
    prompt = list(range(1, 49)) + [3] * 30
    run, engine = make(64)
    run.scheduler.add(sequence("a", prompt, 4))
    finish(run, engine)
    other, cold = make(64)
    names = NAMES.of(sequence("x", prompt, 1))
    cold.store = {name: engine.store[name] for name in names if name != names[2]}
    asking = sequence("b", prompt, 4)
    asking.stored = len(names)
    other.scheduler.add(asking)
    assert finish(other, cold) == 2
    assert other.outputs["b"] == alone(prompt, 4, 0)
    assert names[2] in cold.store


@pytest.mark.parametrize("mode", ["never", "auto"])
def test_computing_may_be_chosen(mode: str) -> None:
    prompt = [2] * 200
    run, _ = make(64, mode=mode)
    costs = run.scheduler.costs
    costs.computed(64, 1e-6)
    costs.fetched(4, 5.0, now=1e12)
    asking = sequence("a", prompt, 1)
    asking.stored = 12
    run.scheduler.add(asking)
    run.step()
    assert run.scheduler.take_fetches() == []


def test_a_late_fetch_keeps_its_slots_until_it_is_done() -> None:
    prompt = [4] * 100
    run, engine = make(32)
    source, filled = make(32)
    source.scheduler.add(sequence("s", prompt, 1))
    finish(source, filled)
    engine.store = filled.store
    asking = sequence("a", prompt, 3)
    asking.stored = 6
    run.scheduler.add(asking)
    run.step()
    (fetch,) = run.scheduler.take_fetches()
    run.scheduler.give_up(fetch.fetch_id)
    run.scheduler.check_invariants()
    assert asking.stored == -1
    held = set(fetch.blocks)
    while "a" not in run.outputs:
        run.step()
        for piece in run.plans[-1].chunks:
            assert not held & set(piece.new_blocks)
        engine.fetch(fetch.names, fetch.blocks, fetch.sliding)  # the late fetch still writes
    assert run.outputs["a"] == alone(prompt, 3, 0)
    assert run.scheduler.take_fetches() == []
    deliver(run, engine, fetch)
    run.finish()
    assert run.scheduler.blocks.num_used == 0


def test_a_cancelled_sequence_leaves_what_comes_to_others() -> None:
    prompt = [9] * 64 + [1]
    run, engine = make(32)
    source, filled = make(32)
    source.scheduler.add(sequence("s", prompt, 1))
    finish(source, filled)
    engine.store = filled.store
    asking = sequence("a", prompt, 3)
    asking.stored = 4
    run.scheduler.add(asking)
    run.step()
    (fetch,) = run.scheduler.take_fetches()
    run.scheduler.end(asking)
    run.scheduler.check_invariants()
    assert run.scheduler.blocks.num_used == 5
    deliver(run, engine, fetch)
    assert run.scheduler.blocks.num_used == 0
    again = sequence("b", prompt, 3)
    run.scheduler.add(again)
    finish(run, engine)
    assert again.cached_tokens == 64
    assert again.fetched_tokens == 0
    assert run.outputs["b"] == alone(prompt, 3, 0)


def test_a_sequence_that_gave_way_comes_back_without_prefill() -> None:
    run, engine = make(12, budget=32)
    low = sequence("low", [3] * 80, 100)
    low.eos_ids = frozenset()
    run.scheduler.add(low)
    for _ in range(12):
        run.step()
        fill_store(engine, run)
    computed = len(low.tokens) - 1
    high = sequence("high", [5] * 170, 2, priority=5)
    run.scheduler.add(high)
    came = 0
    while "high" not in run.outputs:
        run.step()
        fill_store(engine, run)
    assert low.num_preemptions == 1
    before = engine.num_computed
    while low.phase.value != "running" or low.computed < computed:
        run.step()
        for fetch in run.scheduler.take_fetches():
            came += deliver(run, engine, fetch)
    assert came >= 3  # the other blocks were still cached
    # at most the partial block and the tokens in flight are computed again
    assert engine.num_computed - before <= BLOCK_SIZE + 4


def test_gets_blocks_without_a_sequence() -> None:
    prompt = [8] * 64
    run, engine = make(32)
    names = NAMES.of(sequence("x", prompt, 1))
    fetches = run.scheduler.queues.fetches
    fetch_id = fetches.begin_alone(names)
    (fetch,) = fetches.take(0)
    assert (fetch.fetch_id, fetch.first, len(fetch.blocks)) == (fetch_id, 0, 4)
    engine.store = {name: [1] * BLOCK_SIZE for name in names}
    deliver(run, engine, fetch)
    blocks = run.scheduler.blocks
    assert (blocks.num_used, blocks.num_found(names)) == (0, 4)
    assert fetches.begin_alone(names) == 0
    assert blocks.drop(names[2:]) == 2
    blocks.check_invariants()
    assert blocks.num_found(names) == 2
    small, _ = make(2)
    assert small.scheduler.queues.fetches.begin_alone(names) == 0
    small.scheduler.check_invariants()


@pytest.mark.parametrize("window", [0, 1, 24, 50])
@pytest.mark.parametrize("seed", range(10))
def test_random_trouble_changes_no_token(seed: int, window: int) -> None:
    """Two groups share a store that loses blocks; prompts share prefixes, and some requests are cancelled."""
    rng = random.Random(seed)
    store: dict[bytes, list[int | None]] = {}
    groups = [
        make(rng.choice([14, 24, 60]), run_ahead=rng.choice([0, 1]), budget=32, window=window)
        for _ in range(2)
    ]
    for _, engine in groups:
        engine.store = store
    prefixes = [[rng.randrange(1, VOCAB) for _ in range(rng.randrange(20, 90))] for _ in range(3)]
    expected: dict[str, Output] = {}
    cancelled: set[str] = set()
    live: dict[str, tuple[Run, Sequence]] = {}
    in_flight: list[tuple[Run, HashEngine, BlockFetch]] = []
    fetched = 0

    def turn(number: int) -> None:
        nonlocal fetched
        run, engine = groups[number % 2]
        if rng.random() < 0.4 and len(expected) < 60:
            name = f"r{len(expected)}"
            tokens = rng.choice(prefixes) + [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 60))]
            one = sequence(name, tokens, rng.randrange(1, 40), rng.randrange(3))
            one.stored = rng.randrange(0, len(tokens) // BLOCK_SIZE + 1)  # a guess that may be wrong
            expected[name] = alone(one.tokens, one.max_tokens, 0)
            live[name] = (run, one)
            run.scheduler.add(one)
        run.step()
        in_flight.extend((run, engine, fetch) for fetch in run.scheduler.take_fetches())
        rng.shuffle(in_flight)
        for index in range(len(in_flight) - 1, -1, -1):
            if rng.random() < 0.3:
                who, whose, fetch = in_flight.pop(index)
                if rng.random() < 0.2:
                    who.scheduler.give_up(fetch.fetch_id)
                    in_flight.append((who, whose, fetch))
                else:
                    fetched += deliver(who, whose, fetch)
        behind = run.scheduler.write_behind
        behind.done([n for n in store if rng.random() < 0.5], [n for n in store if rng.random() < 0.1])
        if store and rng.random() < 0.1:
            del store[rng.choice(list(store))]
        if live and rng.random() < 0.03:
            name = rng.choice(list(live))
            who, one = live[name]
            if name not in who.outputs:
                who.scheduler.end(one)
                cancelled.add(name)

    for number in range(4000):
        turn(number)
        done = {**groups[0][0].outputs, **groups[1][0].outputs}
        if len(expected) == 60 and len(done.keys() | cancelled) == 60:
            break
    for run, engine, fetch in in_flight:
        deliver(run, engine, fetch)
    for run, engine in groups:
        finish(run, engine)
        assert run.scheduler.blocks.num_used == 0
        for name, output in run.outputs.items():
            assert output == expected[name], name
    assert len(groups[0][0].outputs.keys() | groups[1][0].outputs.keys() | cancelled) == 60
    assert fetched > 3


def test_costs_follow_what_was_measured() -> None:
    costs = TransferCostModel(512)
    assert costs.rates() == (0.0, 0.0, 0.0) or costs.rates()[1:] == (0.0, 0.0)
    assert costs.fetches(4, 0.0)  # without measurements, the store is tried
    for size, seconds in ((512, 0.14), (64, 0.03), (16, 0.012)):
        costs.computed(size, seconds)
    assert costs.recompute_s(2000) == pytest.approx(3 * 0.14 + 464 * 0.14 / 512)
    for blocks in (2, 10, 125, 60, 4) * 4:
        costs.fetched(blocks, 0.001 + blocks * 0.0003, 100.0)
    assert costs.fetch_s(125) == pytest.approx(0.001 + 125 * 0.0003, rel=0.01)
    assert costs.fetches(125, 100.0)
    recompute, fetch, fixed = costs.rates()
    assert recompute == pytest.approx(512 / 0.14)
    assert fetch == pytest.approx(BLOCK_SIZE / 0.0003, rel=0.05)
    assert fixed == pytest.approx(0.001, abs=3e-4)
    for _ in range(12):
        costs.fetched(10, 5.0, 200.0)
    assert not costs.fetches(10, 201.0)
    assert costs.fetches(10, 201.0 + RETRY_S)


def test_write_behind_is_bounded_and_forgets() -> None:
    behind, blocks = WriteBehind(max_waiting=3, max_known=2), BlockManager(8)
    behind.add([b"a"])
    assert not behind.has_work  # switched off
    behind.enabled = True
    blocks.allocate(1, 5 * BLOCK_SIZE)
    names = [bytes([i]) * 16 for i in range(5)]
    blocks.register(1, 0, names)
    behind.add(names)
    taken = behind.take(blocks)
    assert [copy.name for copy in taken] == names[2:]
    assert all(behind.is_due(copy.name) for copy in taken)
    behind.add(names[2:])
    assert not behind.has_work  # already being written
    behind.forget(names[2:3])
    behind.done(names[2:4], names[4:])
    assert [behind.num_known_of([name]) for name in names] == [False, False, False, True, False]
    behind.found(names[:2])
    assert behind.num_known == 2
    assert behind.num_known_of(names) == 2
    behind.add([b"gone" * 4])
    assert behind.take(blocks) == []
    behind.forget_all()
    assert behind.num_known == 0


def test_who_would_have_to_wait_for_others_rather_fetches() -> None:
    costs = TransferCostModel(512)
    costs.computed(512, 0.02)  # 40 us per token
    for _ in range(20):
        costs.fetched(4, 0.012, 0.0)
    assert not costs.fetches(4, 1.0)
    assert not costs.fetches(4, 1.0, ahead=128)
    assert costs.fetches(4, 1.0, ahead=512)
    assert not costs.fetches(4, 1.0, ahead=512, in_flight=(2, 8)), "fetches are waited for, too"
    assert costs.fetches(4, 1.0, ahead=4096, in_flight=(2, 8))


def test_a_store_that_was_not_used_for_long_is_tried_by_one() -> None:
    costs = TransferCostModel(512)
    costs.computed(512, 0.02)
    assert costs.fetches(4, 0.0), "never tried"
    assert not costs.fetches(4, 0.0, in_flight=(1, 4))
    for _ in range(20):
        costs.fetched(4, 0.012, 0.0)
    assert costs.fetches(4, 1.0 + RETRY_S)
    assert not costs.fetches(4, 1.0 + RETRY_S, in_flight=(1, 4)), "that one tells whether it is fast"
    assert costs.fetches(4, 1.0 + RETRY_S, ahead=4096, in_flight=(1, 4))
