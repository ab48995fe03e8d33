"""Draft tokens change no token, at any temperature, with penalties and log probabilities, right or wrong."""

import random
from pathlib import Path

from services.worker.domain.blocks.block_manager import BlockManager
from services.worker.domain.blocks.block_names import BlockNames
from services.worker.domain.scheduling.scheduler import Scheduler, SchedulerLimits
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.native_compute import NativeCompute
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.plan import StepPlan, StepResult
from shared.messages import Sampling
from tests.kits.engine.rank_threads import GREEDY, make_llama, native_compute, run_threads
from tests.kits.worker.scheduler import Output, Run

NUM_BLOCKS = 64
SAMPLINGS = [
    GREEDY,
    Sampling(seed=3, temperature=0.8, top_p=0.9, repetition_penalty=1.3),
    Sampling(seed=4, temperature=1.0, presence_penalty=0.9, frequency_penalty=0.7, logprobs=2),
    Sampling(seed=5, temperature=0.3, top_k=20, logit_bias={7: 2.0}, min_tokens=9, stop_token_ids=[11, 12]),
]


def outputs(
    runner: Runner, most: int, guesses: dict[str, Output] | None, results: list[StepResult]
) -> dict[str, Output]:
    """The outputs of eight sequences; with `guesses` most drafts are right, without they are looked up."""

    def compute(plan: StepPlan) -> StepResult:
        results.append(runner.run_step(plan))
        return results[-1]

    limits = SchedulerLimits(64, 8, 32, draft_tokens=most)
    run = Run(Scheduler(BlockManager(NUM_BLOCKS), limits, BlockNames("f")), compute, 1)
    chance, errors = random.Random(1), random.Random(2)
    speculation = run.scheduler.speculation
    run.scheduler.queues._last_seq_id = 1000 * len(results)

    def drafts_of(sequence: Sequence, num_running: int) -> list[int]:
        assert guesses is not None
        said, done = guesses[sequence.request_id][0], sequence.num_output
        drafts = said[done : done + min(most, sequence.max_tokens - done - 1)]
        return [token if errors.random() < 0.85 else (token + 1) % 203 for token in drafts]

    if guesses:
        speculation.drafts_of = drafts_of  # type: ignore[method-assign]
    for number in range(8):
        prompt, sampling = [chance.randrange(203) for _ in range(5 + 9 * (number % 4))], SAMPLINGS[number % 4]
        made = Sequence(str(number), number // 4, prompt, len(prompt), 40, sampling)
        made.enqueued_as(number)
        run.scheduler.add(made)
        run.step()
    run.finish()
    if guesses:
        assert speculation.num_accepted > 60
        assert speculation.num_drafted > speculation.num_accepted
    return run.outputs


def test_drafts_change_no_token_and_no_log_probability(tmp_path: Path) -> None:
    directory = make_llama(tmp_path)

    def work(collectives: Collectives) -> None:
        with open_checkpoint(directory) as checkpoint:
            compute = native_compute(checkpoint, read_config(directory), collectives, NUM_BLOCKS)
        runner, results = Runner(compute), list[StepResult]()
        without = outputs(runner, 0, None, results)
        plain_steps = len(results)
        scored = _scores(results)
        assert outputs(runner, 6, without, results) == without
        assert len(results) - plain_steps < 0.8 * plain_steps
        assert _scores(results[plain_steps:]) == scored
        assert outputs(runner, 6, None, results) == without
        if isinstance(compute, NativeCompute):
            compute.close()

    run_threads(1, work)


def _scores(results: list[StepResult]) -> list[tuple[int, float]]:
    """Tokens with their log probabilities, of all sequences together."""
    found = ((one.token_id, one.logprob) for result in results for one in result.sampled if one.logprob)
    return sorted(found)
