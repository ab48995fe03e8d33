"""Drives an engine with a scheduler as the leader does, for sequences that have grammars."""

from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames
from services.worker.domain.constraints.forced_tokens import force_first
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.plan import Engine, StepPlan
from tests.kits.worker.options import scheduler_limits

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
