"""A pool of sliding blocks changes no token: with kernels, with fp8, in the plain path, in recorded steps."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.blocks.sliding_blocks import SlidingBlocks
from services.worker.domain.blocks.transfer_costs import TransferCostModel
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.engine.checkpoint.weight_files import Checkpoint, open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.cold_zone import ColdZone
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.compute import NativeCompute, NativeOptions
from services.worker.engine.native.library import kernels
from services.worker.engine.native.weights import NativeWeights
from services.worker.engine.plain.compute import PlainCompute
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.rank.compute import CacheBlocks, Compute
from services.worker.engine.rank.runner import Runner
from services.worker.engine.rank.sequences import PlanError
from services.worker.rank_protocol.plan import BLOCK_SIZE, ScheduledChunk, StepPlan, StepResult
from services.worker.rank_protocol.sliding_pool import PoolSizes, chunk_blocks, least_blocks
from tests.kits.engine.decode_plans import EagerCapture
from tests.kits.engine.plans import GREEDY
from tests.kits.engine.rank_threads import new_sequence
from tests.kits.engine.small_models import small_model
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import Output, Run

MODES = ["native", "fp8", "plain", "recorded"]
WINDOW, NUM_BLOCKS, LIMITS = 20, 40, scheduler_limits(24, 3, 32)


model = small_model(
    "qwen3",
    use_sliding_window=True,
    sliding_window=WINDOW,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
)


class Group:
    """One rank, its scheduler, and a store that it may share with another group."""

    def __init__(self, runner: Runner, store: dict[bytes, NDArray[np.uint8]], sliding: bool) -> None:
        pool = None
        if sliding:
            filled = chunk_blocks(LIMITS.token_budget, LIMITS.max_running)
            pool = SlidingBlocks(runner.sequences.sizes.num_sliding, WINDOW, filled)
        behind = WriteBehind()
        behind.enabled = True
        self.blocks = BlockManager(NUM_BLOCKS, pool)
        costs = TransferCostModel(LIMITS.token_budget, "always")
        self.run = Run(
            Scheduler(self.blocks, LIMITS, BlockNames("f"), write_behind=behind, costs=costs), self.compute, 1
        )
        self.num_fetched = 0
        self.runner, self._store = runner, store

    @property
    def _bytes(self) -> CacheBlocks:
        return self.runner.blocks

    def compute(self, plan: StepPlan) -> StepResult:
        for copy in plan.store:
            rows = np.empty((len(self._bytes.writes), self._bytes.head_bytes), np.uint8)
            self._bytes.copy_out(copy.block, rows, copy.sliding)
            self._store[copy.name] = rows
        self.run.scheduler.write_behind.done([copy.name for copy in plan.store], [])
        return self.runner.run_step(plan)

    def finish(self) -> dict[str, Output]:
        scheduler = self.run.scheduler
        while scheduler.has_work or self.run.results:
            self.run.step()
            for fetch in scheduler.take_fetches():
                for at, name in enumerate(fetch.names):
                    sliding = fetch.sliding[at] if fetch.sliding else -1
                    self._bytes.copy_in(fetch.blocks[at], self._bytes.heads.start, self._store[name], sliding)
                self.num_fetched += len(fetch.names)
                scheduler.fetched(fetch.fetch_id, len(fetch.names))
        return self.run.outputs


@contextmanager
def group(model: Path, store: dict[bytes, NDArray[np.uint8]], mode: str, *, sliding: bool) -> Iterator[Group]:
    num_sliding = least_blocks(WINDOW, LIMITS.token_budget, LIMITS.max_running) if sliding else 0
    sizes = PoolSizes(NUM_BLOCKS, num_sliding)
    with open_checkpoint(model) as checkpoint:
        compute = _compute(checkpoint, read_config(model), mode, sizes)
    try:
        yield Group(Runner(compute), store, sliding)
    finally:
        if isinstance(compute, NativeCompute):
            compute.close()


def _compute(checkpoint: Checkpoint, config: ModelConfig, mode: str, sizes: PoolSizes) -> Compute:
    if mode in {"plain", "recorded"}:
        decoder, cache = Decoder(checkpoint, config, SingleRank()), KVCache(config, sizes, 0, 1)
        recorded = EagerCapture() if mode == "recorded" else None
        return PlainCompute(decoder, cache, recorded, tiled=mode == "plain")
    compiled = kernels()
    weights = NativeWeights.load(open_source(checkpoint, config, SingleRank()), config, compiled)
    cold = ColdZone(1, (True, True, False)) if mode == "fp8" else None
    options = NativeOptions(spin=False, cold=cold)
    return NativeCompute(compiled, config, weights, SingleRank(), sizes=sizes, options=options)


def requests(*, shared: bool = True) -> list[Sequence]:
    """Prompts that are several windows long and may share beginnings."""
    chance = random.Random(3)
    common = [chance.randrange(203) for _ in range(200)]
    made = []
    for number in range(10):
        if not shared:
            common = [chance.randrange(203) for _ in range(120)]
        prompt = common[: chance.randrange(10, 200)] + [chance.randrange(203) for _ in range(1 + number)]
        made.append(Sequence(str(number), 0, prompt, len(prompt), 40, GREEDY))
        made[-1].enqueued_as(number)
    return made


@pytest.mark.parametrize("mode", MODES)
def test_tokens_do_not_depend_on_the_pool(model: Path, mode: str) -> None:
    # where a sequence finds its beginning decides which of its blocks it reads as fp8
    shared = mode != "fp8"
    outputs = []
    for sliding in (False, True):
        with group(model, {}, mode, sliding=sliding) as one:
            for request in requests(shared=shared):
                one.run.scheduler.add(request)
                one.run.step()
            outputs.append(one.finish())
            assert (one.run.scheduler.admission.take_counts()[1] > 0) == shared  # prefixes were found
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 10


@pytest.mark.parametrize("mode", MODES)
def test_a_group_goes_on_with_what_another_one_stored(model: Path, mode: str) -> None:
    """Also between a group with a pool of sliding blocks and one without."""
    for giver_slides, taker_slides in ((True, True), (True, False), (False, True)):
        store: dict[bytes, NDArray[np.uint8]] = {}
        first = requests()[0]
        first.tokens = first.tokens * 4
        first.prompt_len = len(first.tokens)
        second = Sequence("second", 0, [], 0, 30, GREEDY)
        with group(model, store, mode, sliding=giver_slides) as giver:
            giver.run.scheduler.add(first)
            giver.finish()
            second.tokens = [*first.tokens, 7]
            second.prompt_len = len(second.tokens)
            again = Sequence("again", 0, second.tokens.copy(), second.prompt_len, 30, GREEDY)
            giver.run.scheduler.add(again)
            wanted = giver.finish()["again"]
        second.stored = (len(first.tokens) - 1) // BLOCK_SIZE
        with group(model, store, mode, sliding=taker_slides) as taker:
            taker.run.scheduler.add(second)
            assert taker.finish()["second"] == wanted
            assert taker.num_fetched == (len(first.tokens) - 1) // BLOCK_SIZE


def test_plans_with_wrong_sliding_blocks_are_refused(model: Path) -> None:
    with group(model, {}, "native", sliding=True) as one:
        runner = one.runner
        for number, (blocks, first, reason) in enumerate(
            (([], 0, "0 sliding blocks for 3 tokens"), ([10**6], 0, "a block outside 0.."))
        ):
            with pytest.raises(PlanError, match=reason):
                runner.run_step(_plan(number + 1, blocks, first))


def _plan(seq_id: int, sliding: list[int], first: int) -> StepPlan:
    chunk = ScheduledChunk(
        seq_id=seq_id,
        start=0,
        token_ids=[1, 2, 3],
        new_blocks=[0],
        sliding_blocks=sliding,
        sliding_first=first,
    )
    return StepPlan(step_id=seq_id, admit=[new_sequence(seq_id, [1, 2, 3])], chunks=[chunk])
