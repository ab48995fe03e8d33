"""Real ranks under grammars: the answer is the same however it is computed, and wherever it is resumed."""

from collections import deque
from collections.abc import AsyncIterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.constraints.forced_tokens import force_first
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.plan import Engine, StepPlan
from services.worker.rank_protocol.step_masks import StepMasks
from tests.kits.engine.rank_options import rank_options
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.toy_constraint import ToyConstraint

_names = iter(range(1, 1_000_000))  # block names: one run must not find the blocks of another


@dataclass
class ConstrainedRun:
    """What became of sequences.

    Attributes:
        outputs: Output and finish reason of each sequence.
        borders: For each sequence after how many output tokens a caller may be: between frames.
        plans: All that was computed.
        num_preemptions: Of all of them.
    """

    outputs: list[tuple[list[int], str]] = field(default_factory=list)
    borders: list[list[int]] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)
    num_preemptions: int = 0


async def run_constrained(
    engine: Engine, sequences: Many[Sequence], *, run_ahead: int = 1, num_blocks: int = 64
) -> ConstrainedRun:
    """Computes sequences to their end, up to 16 at a time."""
    names = BlockNames(f"f{next(_names)}")
    scheduler = Scheduler(BlockManager(num_blocks), scheduler_limits(64, 16, 64), names)
    run, reasons = ConstrainedRun(), {id(sequence): "" for sequence in sequences}
    run.borders = [[0] for _ in sequences]
    for number, sequence in enumerate(sequences):
        for _, reason in sequence.append_run(force_first(sequence)):
            reasons[id(sequence)] = reason or ""
        sequence.enqueued_as(number)
        if not reasons[id(sequence)]:
            scheduler.add(sequence)
    outstanding = deque[tuple[StepPlan, object]]()
    while scheduler.has_work or outstanding:
        while len(outstanding) <= run_ahead:
            plan = scheduler.plan()
            if not plan.chunks and not plan.release:
                break
            run.plans.append(plan)
            outstanding.append((plan, engine.submit(plan)))
            for masks in scheduler.take_masks():
                engine.supply_masks(masks)
        result = await outstanding.popleft()[1]  # type: ignore[misc]
        advances = scheduler.apply(result)
        for masks in scheduler.take_masks():
            engine.supply_masks(masks)
        for advance in advances:
            assert not advance.sampled.error, advance.sampled.error
            reasons[id(advance.sequence)] = advance.finish_reason or ""
        for sequence, border in zip(sequences, run.borders, strict=True):
            if not sequence.forced and sequence.num_output > border[-1]:
                border.append(sequence.num_output)
        scheduler.check_invariants()
    run.outputs = [(s.tokens[s.prompt_len :], reasons[id(s)]) for s in sequences]
    run.num_preemptions = scheduler.num_preemptions
    return run


DEMO = Path(__file__).parents[3] / "models" / "demo"
VOCAB, EOS = 2048, 1
MAX_TOKENS = 48


@pytest.fixture(scope="module", params=[1, 2])
def tensor_parallel(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
async def engine(tensor_parallel: int) -> AsyncIterator[RankEngine]:
    engine = RankEngine(
        rank_options(model=DEMO, tensor_parallel=tensor_parallel, threads=1, kv_cache_tokens=2048)
    )
    await engine.start()
    yield engine
    await engine.stop()


def sequences(
    count: int = 4, *, logprobs: int = -1, before: dict[int, list[int]] | None = None
) -> list[Sequence]:
    """The choices of a request, each with a grammar and a penalty that counts forced tokens."""
    made = []
    for choice in range(count):
        prompt, earlier = [*range(40, 60)], (before or {}).get(choice, [])
        grammar = ToyConstraint(VOCAB, [EOS], 5 + choice // 2, longest=40, ends=0.0)
        grammar.accept(earlier)
        made.append(
            Sequence(
                request_id="r",
                choice=choice,
                tokens=prompt + earlier,
                prompt_len=len(prompt),
                max_tokens=MAX_TOKENS,
                sampling=EngineSampling(seed=11, temperature=1.0, presence_penalty=1.5, logprobs=logprobs),
                eos_ids=frozenset([EOS]),
                constraint=grammar,
            )
        )
    return made


async def test_the_answer_depends_on_nothing_but_the_request(engine: RankEngine) -> None:
    plain = await run_constrained(engine, sequences(), run_ahead=0)
    ahead = await run_constrained(engine, sequences(), run_ahead=1)
    assert ahead.outputs == plain.outputs
    assert any(piece.follow and piece.masked for plan in ahead.plans for piece in plan.chunks)
    assert any(1 < piece.num_tokens < 7 for plan in plain.plans for piece in plan.chunks)
    assert len({tuple(tokens) for tokens, _ in plain.outputs}) > 2

    short = await run_constrained(engine, sequences(), num_blocks=8)
    assert short.num_preemptions > 0
    assert short.outputs == plain.outputs

    sampled = await run_constrained(engine, sequences(logprobs=0))
    assert sampled.outputs == plain.outputs
    assert sum(len(plan.chunks) for plan in sampled.plans) > sum(len(plan.chunks) for plan in ahead.plans)

    for borders in (plain.borders[0], sampled.borders[0]):
        assert len(borders) > 5
        for border in borders[:-1]:
            earlier = {0: plain.outputs[0][0][:border]}
            resumed = await run_constrained(engine, sequences(1, before=earlier))
            assert resumed.outputs == plain.outputs[:1], border


async def test_masks_of_another_step_end_the_engine(engine: RankEngine) -> None:
    (sequence,) = sequences(1)

    class WrongMasks(RankEngine):
        def supply_masks(self, masks: StepMasks) -> None:
            super().supply_masks(StepMasks(step_id=masks.step_id + 1, masks=masks.masks))

    engine.__class__ = WrongMasks
    with pytest.raises(EngineFailed, match="the masks of step 2 came while step 1 ran"):
        await run_constrained(engine, [sequence])
