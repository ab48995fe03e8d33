"""One rank's share of a step: plan in, sampled tokens out (on rank 0).

Joins sequences, model and sampler; knows neither sockets nor processes, so a test runs several
of them in one process.
"""

import time

from torch import Tensor

from services.worker.domain.plan import Sampled, StepPlan, StepResult
from services.worker.engine.compute import Compute
from services.worker.engine.sampler import Sampler
from services.worker.engine.sequences import Sequences, SequenceState


class Runner:
    """Runs plans on one rank, one at a time and all of them in the order of the leader."""

    def __init__(self, compute: Compute) -> None:
        self.sequences = Sequences(compute.num_blocks)
        self._compute = compute
        self._sampler = Sampler()
        self._collectives = compute.collectives

    def step(self, plan: StepPlan) -> StepResult:
        """The tokens sampled in this step; empty on all ranks but 0.

        Raises:
            PlanError: the plan contradicts earlier ones.
            CollectiveError: another rank is gone.
            SamplingError: the logits are not finite.
        """
        began, waited = time.perf_counter(), self._collectives.seconds
        states, logits = self.forward(plan)
        sampled: list[Sampled] = []
        if logits is not None:
            sampling = [i for i, part in enumerate(plan.slices) if part.sample]
            ends = [plan.slices[i].start + len(plan.slices[i].token_ids) for i in sampling]
            sampled = self._sampler.sample(logits.numpy(), [states[i] for i in sampling], ends)
        return StepResult(
            step_id=plan.step_id,
            sampled=sampled,
            compute_s=time.perf_counter() - began,
            collectives_s=self._collectives.seconds - waited,
        )

    def forward(self, plan: StepPlan) -> tuple[list[SequenceState], Tensor | None]:
        """The states of the plan's slices, and on rank 0 the logits of the sampling ones, [rows, vocab]."""
        states = self.sequences.apply(plan)
        if not plan.slices:
            return states, None
        return states, self._compute.forward(plan.slices, states)
