"""A KV cache that shrinks and grows under load gives the oracle's tokens, and memory to the system."""

import random
from pathlib import Path

import pytest

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.sliding_blocks import SlidingBlocks
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.cold_zone import ColdZone
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.compute import NativeCompute, NativeOptions
from services.worker.engine.native.library import kernels
from services.worker.engine.native.weights import NativeWeights
from services.worker.engine.plain.reference import ReferenceDecoder
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.plan import StepPlan, StepResult
from services.worker.rank_protocol.sliding_pool import PoolSizes, chunk_blocks, least_blocks
from tests.kits.engine.plans import GREEDY
from tests.kits.engine.resident_pages import resident_pages, resident_share
from tests.kits.engine.small_models import small_model
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import Output, Run

WINDOW, NUM_BLOCKS, LIMITS = 20, 64, scheduler_limits(24, 6, 64)
LONGEST = 10  # blocks of a sequence
NUM_REQUESTS = 50

model = small_model(
    "qwen3",
    use_sliding_window=True,
    sliding_window=WINDOW,
    layer_types=["sliding_attention", "full_attention", "full_attention"],
)


class Rank:
    """One rank with kernels; after each vacated range it is checked that its pages are gone."""

    def __init__(self, directory: Path, sizes: PoolSizes, cold: ColdZone | None = None) -> None:
        with open_checkpoint(directory) as checkpoint:
            config, compiled = read_config(directory), kernels()
            weights = NativeWeights.load(open_source(checkpoint, config, SingleRank()), config, compiled)
        options = NativeOptions(spin=False, cold=cold)
        self.native = NativeCompute(compiled, config, weights, SingleRank(), sizes=sizes, options=options)
        self.runner = Runner(self.native)
        self.num_vacated = 0

    def compute(self, plan: StepPlan) -> StepResult:
        self.native.vacate(plan.vacate, plan.vacate_sliding)
        for pool, ranges in zip(self.native.cache.pools, (plan.vacate, plan.vacate_sliding), strict=True):
            for first, end in ranges:
                pages = resident_pages(pool.bytes[first:end])
                assert sum(pages) <= 1  # the end of the range may lie in a page of the next block
                self.num_vacated += end - first
        return self.runner.run_step(plan)


def _requests() -> list[Sequence]:
    chance = random.Random(5)
    common = [chance.randrange(203) for _ in range(100)]
    made = []
    for number in range(NUM_REQUESTS):
        prompt = common[: chance.randrange(100)] + [chance.randrange(203) for _ in range(1 + number % 30)]
        made.append(Sequence(str(number), 0, prompt, len(prompt), 24, GREEDY))
        made[-1].enqueued_as(number)
    return made


def _serve(run: Run, blocks: BlockManager, *, changes: bool) -> tuple[dict[str, Output], int, int]:
    """Serves all requests; returns the outputs, and how many times the limit fell and rose."""
    chance, coming, fell, rose = random.Random(7), _requests(), 0, 0
    while coming or run.scheduler.has_work or run.results:
        if coming and chance.random() < 0.3:
            run.scheduler.add(coming.pop(0))
        run.step()
        if changes:
            low = blocks.limit == NUM_BLOCKS
            limit = chance.randint(LONGEST, NUM_BLOCKS // 2) if low else NUM_BLOCKS
            # at every other fall sequences do not grow beyond what is in use
            blocks.set_limit(limit, max(limit, blocks.num_used) if fell % 2 else None)
            fell, rose = fell + low, rose + (not low)
    return run.outputs, fell, rose


@pytest.fixture
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.worker.engine.pool_memory.HUGE_PAGES_FILE", Path("/none"))


@pytest.mark.usefixtures("_small_pages")
@pytest.mark.parametrize("sliding", [False, True])
def test_a_hundred_falls_and_rises_change_no_token(model: Path, sliding: bool) -> None:
    num_sliding = least_blocks(WINDOW, LIMITS.token_budget, LIMITS.max_running) + NUM_BLOCKS // 8
    filled = chunk_blocks(LIMITS.token_budget, LIMITS.max_running)
    rank = Rank(model, PoolSizes(NUM_BLOCKS, num_sliding if sliding else 0))
    served = []
    try:
        for changes in (False, True):
            pool = SlidingBlocks(num_sliding, WINDOW, filled, region=2) if sliding else None
            blocks = BlockManager(NUM_BLOCKS, pool, region=2)
            run = Run(Scheduler(blocks, LIMITS, BlockNames("f")), rank.compute, 1)
            run.scheduler.queues.last_seq_id = 1000 * changes
            served.append(_serve(run, blocks, changes=changes))
    finally:
        rank.native.close()
    outputs, fell, rose = served[1]
    assert outputs == served[0][0]
    assert min(fell, rose) >= 100
    assert rank.num_vacated > 100
    assert run.scheduler.num_preemptions > 0
    assert run.scheduler.admission.take_counts()[1] > 0  # prefixes were found all the same
    with open_checkpoint(model) as checkpoint:
        oracle = ReferenceDecoder(checkpoint, read_config(model))
        for request in _requests()[::5]:
            expected = oracle.generate(request.tokens, request.max_tokens)
            assert outputs[request.request_id] == (expected, "length")


@pytest.mark.usefixtures("_small_pages")
def test_compressed_blocks_shrink_as_well(model: Path) -> None:
    """What is found decides what is read as fp8, so nothing is shared here."""
    outputs = []
    for changes in (False, True):
        rank = Rank(model, PoolSizes(NUM_BLOCKS), ColdZone(1, (True, True, False)))
        blocks = BlockManager(NUM_BLOCKS, region=3)
        run = Run(Scheduler(blocks, LIMITS), rank.compute, 1)
        try:
            outputs.append(_serve(run, blocks, changes=changes)[0])
        finally:
            rank.native.close()
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == NUM_REQUESTS


@pytest.mark.usefixtures("_small_pages")
def test_a_cache_takes_the_memory_that_it_uses(model: Path) -> None:
    rank = Rank(model, PoolSizes(NUM_BLOCKS))
    blocks = BlockManager(NUM_BLOCKS, region=2)
    run = Run(Scheduler(blocks, LIMITS, BlockNames("f")), rank.compute, 0)
    memory = rank.native.cache.pools[0].bytes
    try:
        assert resident_share(memory) == 0.0
        _serve(run, blocks, changes=False)
        full = resident_share(memory)
        blocks.set_limit(LONGEST)
        run.step()
        assert full == 1.0  # with what was cached
        assert resident_share(memory) == pytest.approx(LONGEST / NUM_BLOCKS, abs=0.02)
        assert LONGEST - 2 < blocks.num_cached <= LONGEST  # a region may have an empty block
    finally:
        rank.native.close()
