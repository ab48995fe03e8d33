"""Real ranks and the scheduler give the reference's tokens under sharing, run-ahead and preemption."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.config.read_config import read_config
from services.worker.engine.plain.compute import PlainCompute
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.plain.reference import ReferenceDecoder
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import Sampled, StepPlan, StepResult
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.rank_threads import GREEDY, ThreadCollectives
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import Output, Run

T = TypeVar("T")
NUM_BLOCKS = 12
SEEDED = EngineSampling(seed=3, temperature=0.8, top_p=0.9, repetition_penalty=1.2)


class ThreadRanks:
    """Ranks as threads; all of them compute every plan."""

    def __init__(self, directory: Path, world: int, pool: ThreadPoolExecutor) -> None:
        barrier, board = threading.Barrier(world), [None] * world
        self._pool = pool
        config = read_config(directory)

        def load(rank: int) -> Runner:
            collectives = ThreadCollectives(rank, world, barrier, board)
            with open_checkpoint(directory) as checkpoint:
                decoder = Decoder(checkpoint, config, collectives)
            return Runner(PlainCompute(decoder, KVCache(config, PoolSizes(NUM_BLOCKS), rank, world)))

        self.runners = list(pool.map(load, range(world)))

    def on_all(self, work: Callable[[Runner], T]) -> list[T]:
        return list(self._pool.map(work, self.runners, timeout=10))

    def compute(self, plan: StepPlan) -> StepResult:
        return self.on_all(lambda runner: runner.run_step(plan))[0]


@pytest.fixture(params=[1, 2])
def ranks(model: Path, request: pytest.FixtureRequest) -> Iterator[ThreadRanks]:
    with ThreadPoolExecutor(request.param) as pool:
        yield ThreadRanks(model, request.param, pool)


def sequence(number: int, prompt: list[int], count: int, sampling: EngineSampling, **fields: Any) -> Sequence:
    made = Sequence(str(number), 0, prompt.copy(), len(prompt), count, sampling, **fields)
    made.enqueued_as(number)
    return made


@pytest.mark.parametrize(
    ("ranks", "run_ahead"),
    [(1, 1), (2, 0), *(pytest.param(*one, marks=pytest.mark.models) for one in ((1, 0), (2, 1)))],
    indirect=["ranks"],
)
def test_tokens_are_those_of_the_oracle(ranks: ThreadRanks, model: Path, run_ahead: int) -> None:
    chance = random.Random(run_ahead)
    common = [chance.randrange(203) for _ in range(70)]
    blocks = BlockManager(NUM_BLOCKS)
    run = Run(Scheduler(blocks, scheduler_limits(40, 8, 32), BlockNames("f")), ranks.compute, run_ahead)
    prompts = []
    for number in range(8):
        prompts.append(common[: chance.randrange(71)] + [chance.randrange(203) for _ in range(1 + number)])
        run.scheduler.add(sequence(number, prompts[number], 20 + number, GREEDY))
        run.step()
    run.finish()
    with open_checkpoint(model) as checkpoint:
        oracle = ReferenceDecoder(checkpoint, read_config(model))
        for number, prompt in enumerate(prompts):
            assert run.outputs[str(number)] == (oracle.generate(prompt, 20 + number), "length")
    assert run.scheduler.num_preemptions > 0
    assert run.scheduler.admission.take_counts()[1] > 0
    assert any(piece.follow for plan in run.plans for piece in plan.chunks) == bool(run_ahead)
    assert [len(runner.sequences) for runner in ranks.runners] == [0] * len(ranks.runners)
    assert blocks.num_free == NUM_BLOCKS


def test_draws_do_not_depend_on_what_is_shared_or_followed(ranks: ThreadRanks) -> None:
    outputs: list[dict[str, Output]] = []
    for names, run_ahead in ((BlockNames("f"), 1), (BlockNames("", sharing="off"), 0)):
        run = Run(
            Scheduler(BlockManager(NUM_BLOCKS), scheduler_limits(64, 8, 32), names), ranks.compute, run_ahead
        )
        run.scheduler.queues.last_seq_id = 100 * len(outputs)
        for number in range(3):
            run.scheduler.add(sequence(number, [*range(40), 5], 20, SEEDED))
        run.finish()
        outputs.append(run.outputs)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]["0"][0]) == 20


@pytest.mark.parametrize("count", [3, 256, 700])
def test_all_ranks_learn_what_was_sampled(ranks: ThreadRanks, count: int) -> None:
    """Includes counts that need several broadcasts; a failed sequence gets token 0, a valid token."""

    def share(runner: Runner) -> list[int]:
        mine = [Sampled(seq_id=1, token_id=i, error="bad" if i == 2 else "") for i in range(count)]
        return runner.broadcast_tokens(mine if runner is ranks.runners[0] else [], count)

    expected = [0 if i == 2 else i for i in range(count)]
    assert ranks.on_all(share) == [expected] * len(ranks.runners)
