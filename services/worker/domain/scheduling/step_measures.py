"""Passes what a computed step cost to the estimates that later steps are planned with."""

from services.worker.domain.blocks.transfer_costs import TransferCostModel
from services.worker.domain.scheduling.background import BackgroundPace
from services.worker.domain.scheduling.prompt_budget.prefill_throttle import PrefillThrottle
from services.worker.domain.scheduling.prompt_budget.step_costs import StepWork
from services.worker.domain.scheduling.step_draft import PlannedChunk
from services.worker.domain.speculation.result_booking import BookedStep
from services.worker.domain.speculation.speculation import Speculation
from services.worker.rank_protocol.plan import StepResult


class StepMeasures:
    """Updates the pace of background work, the costs of prompts and transfers, and the gain of drafts.

    Args:
        costs: Learns how fast prompts are computed.
    """

    def __init__(
        self,
        pace: BackgroundPace,
        throttle: PrefillThrottle,
        costs: TransferCostModel,
        speculation: Speculation,
    ) -> None:
        self._pace = pace
        self._throttle = throttle
        self._costs = costs
        self._speculation = speculation

    def book_step(
        self,
        result: StepResult,
        parts: list[PlannedChunk],
        booked: BookedStep,
        step_s: float,
    ) -> None:
        """Books what a step cost.

        Args:
            booked: What came of it.
            step_s: Seconds since the result before it; 0: those of the ranks.
        """
        num_tokens, has_chunk, drafted = booked.num_tokens, booked.has_chunk, booked.drafted
        self._pace.observe_step(len(parts), num_tokens, result.compute_s)
        if self._speculation.most:
            guesses = sum(count for _, count, _ in drafted)
            self._speculation.book_step(len(parts), result, drafted, alone=num_tokens - guesses == len(parts))
        if booked.has_prompt:  # a few forced tokens do not show the speed of prompts
            self._costs.computed(num_tokens, result.compute_s)
        if self._throttle.measures(has_chunk) and result.compute_s:
            work = StepWork.of_chunks(parts)
            self._throttle.observe_step(work, step_s or result.compute_s)
            if has_chunk and not drafted:
                self._throttle.pace.observe_prompts(work.decodes, work.prompt_tokens, result.compute_s)
        if not has_chunk and not drafted:
            self._throttle.pace.observe_decodes(len(parts), result.compute_s)
