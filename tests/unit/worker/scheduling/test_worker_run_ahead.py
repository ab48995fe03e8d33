"""Scheduler, blocks and prefix cache under random loads, with plans made before the last results arrive.

Each sequence must get the tokens that it would get alone, also under sharing, preemption and cancels.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames, PrefixSharing
from services.worker.domain.blocks.pool import blocks_for
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence, SequencePhase
from services.worker.null.engine import TEXT
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import BLOCK_SIZE
from tests.kits.engine.hash_engine import EOS, HashEngine, alone, with_window
from tests.kits.worker.leader import null_engine
from tests.kits.worker.options import scheduler_limits
from tests.kits.worker.scheduler import Output, Run


def make(name: str, prompt: list[int], max_tokens: int, **fields: object) -> Sequence:
    sequence = Sequence(
        request_id=name,
        choice=0,
        tokens=prompt.copy(),
        prompt_len=len(prompt),
        max_tokens=max_tokens,
        sampling=EngineSampling(),
        eos_ids=frozenset([EOS]),
    )
    for key, value in fields.items():
        setattr(sequence, key, value)
    return sequence


def prompts(chance: random.Random, count: int, longest: int) -> list[list[int]]:
    """Random prompts with common prefixes: many are a prefix of an earlier one with new tokens after it."""
    made: list[list[int]] = []
    for _ in range(count):
        kept: list[int] = []
        if made and chance.random() < 0.7:
            parent = chance.choice(made)
            kept = parent[: chance.randint(0, len(parent))]
        new = [chance.randint(1, 3) for _ in range(chance.randint(0 if kept else 1, longest))]
        made.append((kept + new)[:longest])
    return made


def load(chance: random.Random, num_blocks: int, engine: str) -> tuple[list[Sequence], dict[str, Output]]:
    """Random sequences that fit into the blocks, and the expected output of each by its name."""
    coming, expected = list[Sequence](), dict[str, Output]()
    for number, prompt in enumerate(prompts(chance, chance.randint(1, 30), 70)):
        max_tokens = chance.randint(1, 40)
        if blocks_for(len(prompt) + max_tokens) > num_blocks:
            continue
        for choice in range(chance.choice([1, 1, 2, 3])):
            name = f"{number}.{choice}"
            fields = {"choice": choice, "tenant": chance.choice("ab"), "priority": chance.choice([0, 0, 1])}
            sequence = make(name, prompt, max_tokens, **fields)
            sequence.enqueued_as(len(coming))
            coming.append(sequence)
            expected[name] = alone(prompt, max_tokens, choice)
            if engine == "null":
                sequence.eos_ids = frozenset()
                said = [ord(TEXT[p % len(TEXT)]) for p in range(len(prompt), len(prompt) + max_tokens)]
                expected[name] = said, "length"
    return coming, expected


def guess_most(scheduler: Scheduler, expected: dict[str, Output], chance: random.Random) -> None:
    """Makes the scheduler draft what is going to be sampled, with some errors."""
    speculation = scheduler.speculation
    most = speculation.most

    def drafts_of(sequence: Sequence, num_running: int) -> list[int]:
        said, done = expected[sequence.request_id][0], sequence.num_output
        count = min(chance.randint(0, most), sequence.max_tokens - done - 1)
        drafts = said[done : done + count]
        return [token if chance.random() < 0.8 else 1 + token % 40 for token in drafts]

    if most:
        speculation.drafts_of = drafts_of  # type: ignore[method-assign]


@pytest.mark.sources
@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(4, 40),
    budget=st.integers(4, 48),
    run_ahead=st.integers(0, 1),
    window=st.sampled_from([0, 0, 1, 2, 16, 17, 40]),
    sharing=st.sampled_from(["tenant", "tenant", "all", "off"]),
    engine=st.sampled_from(["hash", "hash", "null"]),
    drafts=st.integers(0, 6),
    region=st.sampled_from([0, 0, 1, 3]),
)
def test_everybody_gets_the_tokens_of_an_undisturbed_run(
    *,
    seed: int,
    num_blocks: int,
    budget: int,
    run_ahead: int,
    window: int,
    sharing: PrefixSharing,
    engine: str,
    drafts: int,
    region: int,
) -> None:
    """With a `region` the limit of the blocks changes again and again, and they lose what is not in use."""
    chance = random.Random(seed)
    limits = scheduler_limits(budget, min(budget, 8), 1000, draft_tokens=drafts)
    blocks, model = with_window(num_blocks, limits, window, region or 1)
    null = null_engine(blocks=num_blocks)
    null.reset()
    compute = model.compute if engine == "hash" else null.compute
    run = Run(Scheduler(blocks, limits, BlockNames("f", sharing=sharing)), compute, run_ahead)
    coming, expected = load(chance, num_blocks, engine)
    guess_most(run.scheduler, expected, chance)

    def change_limit() -> None:
        if region and chance.random() < 0.2:
            blocks.set_limit(chance.choice([num_blocks, chance.randint(1, num_blocks)]))
            run.scheduler.check_invariants()

    run.run_with_cancels(coming, expected, chance, cancelled_share=0.05, disturb=change_limit)
    assert (blocks.num_free, blocks.num_used) == (blocks.limit, 0)
    assert (model.num_known, null.held_blocks) == (0, 0)


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_ten_thousand_tokens_and_random_cancels_leave_nothing_behind(run_ahead: int) -> None:
    chance = random.Random(run_ahead)
    blocks = BlockManager(150)
    model = HashEngine(150)
    run = Run(Scheduler(blocks, scheduler_limits(128, 32, 1000), BlockNames("f")), model.compute, run_ahead)
    expected, generated, alive = {}, 0, []
    for number, prompt in enumerate(prompts(chance, 500, 120)):
        name, max_tokens = str(number), chance.randint(1, 80)
        expected[name] = alone(prompt, max_tokens, 0)
        sequence = make(name, prompt, max_tokens, priority=chance.choice([-1, 0, 0, 1]))
        sequence.enqueued_as(number)
        run.scheduler.add(sequence)
        alive.append(sequence)
        for _ in range(chance.randint(0, 3)):
            run.step()
        if chance.random() < 0.2:
            victim = chance.choice(alive)
            run.scheduler.end(victim)
            run.scheduler.end(victim)
    run.finish()
    for sequence in alive:
        output, reason = sequence.tokens[sequence.prompt_len :], sequence.request_id
        generated += len(output)
        assert sequence.phase is SequencePhase.ENDED
        assert output == expected[reason][0][: len(output)]
    assert all(run.outputs[name] == expected[name] for name in run.outputs)
    assert generated >= 10_000
    assert (blocks.num_free, model.num_known) == (150, 0)
    assert run.scheduler.num_preemptions > 0
    assert run.scheduler.admission.take_counts()[1] > 0


def test_the_second_turn_computes_only_what_is_new() -> None:
    chance = random.Random(5)
    model = HashEngine(512)
    run = Run(Scheduler(BlockManager(512), scheduler_limits(512, 8, 8), BlockNames("f")), model.compute, 1)
    first = make("first", [chance.randint(1, 40) for _ in range(1900)], 100, eos_ids=frozenset())
    run.scheduler.add(first)
    run.finish()
    model.num_computed = 0
    history = first.tokens
    second = make("second", [*history, *(chance.randint(1, 40) for _ in range(30))], 1)
    run.scheduler.add(second)
    run.finish()
    # the KV of the first turn's last token was never computed, and only full blocks are cached
    cached = (len(history) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert len(history) == 2000
    assert second.cached_tokens == cached == 1984
    assert model.num_computed == len(second.tokens) - 1 - cached == 46
    assert run.scheduler.admission.take_counts() == (1900 + 2030, cached)
