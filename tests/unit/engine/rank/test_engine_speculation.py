"""Draft tokens change no token and no log probability, in all precisions and on several ranks."""

import queue
import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.engine.adapters.weights import AdapterWeights
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.compute import NativeCompute
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.adapters import NO_ADAPTER
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import StepPlan, StepResult
from services.worker.rank_protocol.run_config import Precision
from tests.kits.adapters.merged_adapters import random_adapter
from tests.kits.engine.gguf_models import write_gguf
from tests.kits.engine.rank_threads import GREEDY, make_llama, native_ranks, run_threads
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import Output, Run

NUM_BLOCKS, FEW_BLOCKS = 64, 18  # eight sequences have up to 32
SAMPLINGS = [
    GREEDY,
    EngineSampling(seed=3, temperature=0.8, top_p=0.9, repetition_penalty=1.3),
    EngineSampling(seed=4, temperature=1.0, presence_penalty=0.9, frequency_penalty=0.7, logprobs=2),
    EngineSampling(
        seed=5, temperature=0.3, top_k=20, logit_bias={7: 2.0}, min_tokens=9, stop_token_ids=[11, 12]
    ),
]
CASES: list[tuple[Precision, int]] = [
    ("fp32", 1), ("bf16", 1), ("int8", 1), ("codes", 1), ("fp32", 2), ("int8", 2), ("codes", 2)
]  # fmt: skip
Scores = list[tuple[int, float]]
Compute = Callable[[StepPlan], StepResult]


class _Rounds:
    """Rounds of the same eight sequences on one engine, each with a scheduler and a KV cache of its own."""

    def __init__(self, compute: Compute) -> None:
        self._compute, self._seq_ids = compute, 0
        self.steps = 0

    def run(self, most: int, guesses: dict[str, Output] | None = None, blocks: int = NUM_BLOCKS) -> Scheduler:
        """Runs a round; with `guesses` most drafts are right, without them they are looked up."""
        self.scores: Scores = []
        limits = scheduler_limits(64, 8, 32, draft_tokens=most)
        run = Run(Scheduler(BlockManager(blocks), limits, BlockNames("f")), self._step, 1)
        run.scheduler.queues.last_seq_id = self._seq_ids
        if guesses:
            _guess(run.scheduler, most, guesses)
        chance, before = random.Random(1), self.steps
        for number in range(8):
            # the last four share the beginning of their prompts
            prompt = [chance.randrange(203) for _ in range(5 + 9 * (number % 4))]
            if number >= 4:
                prompt = list(range(40)) + prompt
            made = Sequence(str(number), number // 4, prompt, len(prompt), 40, SAMPLINGS[number % 4])
            made.enqueued_as(number)
            run.scheduler.add(made)
            run.step()
        run.finish()
        self._seq_ids = run.scheduler.queues.last_seq_id
        self.outputs, self.num_steps = run.outputs, self.steps - before
        return run.scheduler

    def _step(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        result = self._compute(plan)
        self.scores += [(one.token_id, one.logprob) for one in result.sampled if one.logprob]
        return result


def _guess(scheduler: Scheduler, most: int, guesses: dict[str, Output]) -> None:
    """Drafts what is going to be sampled, with some errors."""
    errors = random.Random(2)

    def drafts_of(sequence: Sequence, num_running: int) -> list[int]:
        said, done = guesses[sequence.request_id][0], sequence.num_output
        drafts = said[done : done + min(most, sequence.max_tokens - done - 1)]
        return [token if errors.random() < 0.85 else (token + 1) % 203 for token in drafts]

    scheduler.speculation.drafts_of = drafts_of  # type: ignore[method-assign]


def _checkpoint(directory: Path, precision: Precision) -> Path:
    model = make_llama(directory / "model", intermediate_size=128)
    return write_gguf(model, directory / "model.gguf", "Q4_0") if precision == "codes" else model


def _with_ranks(
    path: Path,
    precision: Precision,
    world: int,
    work: Callable[[Compute], None],
    adapters: ListOf[AdapterWeights] = (),
) -> None:
    """Calls the work with what computes a plan on all ranks, and gives what rank 0 sampled.

    Args:
        adapters: In the slots from 0 on; for one rank.
    """
    plans = [queue.Queue[StepPlan | None]() for _ in range(world)]
    make = native_ranks(precision=precision, kv_dtype=torch.float32 if precision == "fp32" else torch.float16)

    def one(collectives: Collectives) -> None:
        with open_checkpoint(path) as checkpoint:
            computing = make(checkpoint, read_config(path), collectives, NUM_BLOCKS)
        assert isinstance(computing, NativeCompute)
        for slot, adapter in enumerate(adapters):
            computing.set_adapter(slot, computing.prepare_adapter(adapter))
        runner = Runner(computing)

        def compute(plan: StepPlan) -> StepResult:
            for others in plans[1:]:
                others.put(plan)
            return runner.run_step(plan)

        try:
            if collectives.rank == 0:
                work(compute)
            else:
                for plan in _plans(plans[collectives.rank]):
                    runner.run_step(plan)
        finally:
            for others in plans[1:]:
                others.put(None)
            computing.close()

    run_threads(world, one)


def _plans(given: "queue.Queue[StepPlan | None]") -> Iterator[StepPlan]:
    while (plan := given.get(timeout=60)) is not None:
        yield plan


@pytest.mark.parametrize(("precision", "world"), CASES)
def test_drafts_change_no_token_and_no_log_probability(
    precision: Precision, world: int, tmp_path: Path
) -> None:
    def work(compute: Compute) -> None:
        rounds = _Rounds(compute)
        rounds.run(0)
        without, scores, steps = rounds.outputs, sorted(rounds.scores), rounds.num_steps
        assert len(without) == 8
        assert len(scores) > 40

        drafted = rounds.run(6, without).speculation
        assert drafted.num_accepted > 60
        assert drafted.num_drafted > drafted.num_accepted
        assert rounds.num_steps < 0.8 * steps
        assert (rounds.outputs, sorted(rounds.scores)) == (without, scores)

        rounds.run(6)
        assert (rounds.outputs, sorted(rounds.scores)) == (without, scores)

        scheduler = rounds.run(6, without, FEW_BLOCKS)
        assert scheduler.num_preemptions > 0
        assert scheduler.speculation.num_accepted > 20
        assert rounds.outputs == without

    _with_ranks(_checkpoint(tmp_path, precision), precision, world, work)


def _slot(prompt: list[int]) -> int:
    """The adapter of a sequence; those that share the beginning of their prompts have the same."""
    return 0 if prompt[:40] == list(range(40)) else (NO_ADAPTER, 1)[prompt[0] % 2]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_drafts_are_checked_with_the_adapter_of_their_sequence(precision: Precision, tmp_path: Path) -> None:
    path = _checkpoint(tmp_path, precision)
    plain, scaled = (random_adapter(path, 8, seed) for seed in (1, 2))
    layers = {
        key: replace(
            low, factors=1 + 0.2 * torch.rand(len(low.up), generator=torch.Generator().manual_seed(3))
        )
        for key, low in scaled.layers.items()
    }

    def work(compute: Compute) -> None:
        used: set[int] = set()
        of_base = True

        def adapted(plan: StepPlan) -> StepResult:
            slots = [NO_ADAPTER if of_base else _slot(new.token_ids) for new in plan.admit]
            used.update(slots)
            admit = [
                msgspec.structs.replace(new, adapter=slot)
                for new, slot in zip(plan.admit, slots, strict=True)
            ]
            return compute(msgspec.structs.replace(plan, admit=admit))

        rounds = _Rounds(adapted)
        rounds.run(0)
        plain_outputs, of_base = rounds.outputs, False
        rounds.run(0)
        without, scores, steps = rounds.outputs, sorted(rounds.scores), rounds.num_steps
        assert used == {NO_ADAPTER, 0, 1}
        assert sum(without[key] != plain_outputs[key] for key in without) >= 5

        drafted = rounds.run(6, without).speculation
        assert drafted.num_accepted > 60
        assert rounds.num_steps < 0.8 * steps
        assert (rounds.outputs, sorted(rounds.scores)) == (without, scores)

        rounds.run(6)  # drafts are looked up
        assert (rounds.outputs, sorted(rounds.scores)) == (without, scores)

    _with_ranks(path, precision, 1, work, [plain, replace(scaled, layers=layers)])
