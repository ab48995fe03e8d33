"""Real ranks under grammars: the answer is the same however it is computed, and wherever it is resumed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.worker.domain.scheduling.sequence import Sequence
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.step_masks import StepMasks
from tests.kits.engine.constrained_runs import run_constrained
from tests.kits.engine.rank_options import rank_options
from tests.kits.worker.toy_constraint import ToyConstraint

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
