"""What steps cost and computed: sums over all of them, and estimates for the plans of later ones. Pure."""

from dataclasses import dataclass

from services.worker.domain.blocks.transfer_costs import TransferCostModel
from services.worker.domain.scheduling.background import BackgroundPace
from services.worker.domain.scheduling.prompt_budget.prefill_throttle import PrefillThrottle
from services.worker.domain.scheduling.prompt_budget.step_costs import StepWork
from services.worker.domain.scheduling.step_draft import PlannedChunk
from services.worker.domain.speculation.result_booking import BookedStep
from services.worker.domain.speculation.speculation import Speculation
from services.worker.rank_protocol.plan import StepResult


@dataclass(slots=True)
class StepTotals:
    """Counts and seconds since the leader began; see `StepResult` for the seconds."""

    steps: int = 0
    tokens: int = 0
    compute_s: float = 0.0
    linears_s: float = 0.0
    attention_s: float = 0.0
    collectives_s: float = 0.0
    sampling_s: float = 0.0
    masks_s: float = 0.0

    def add(self, result: StepResult, num_tokens: int) -> None:
        """Adds a step."""
        self.steps += 1
        self.tokens += num_tokens
        self.compute_s += result.compute_s
        self.linears_s += result.linears_s
        self.attention_s += result.attention_s
        self.collectives_s += result.collectives_s
        self.sampling_s += result.sampling_s
        self.masks_s += result.masks_s

    def shown(self) -> dict[str, str | int | float]:
        """The totals by their names, for the moment of a timeline."""
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "compute_s": self.compute_s,
            "linears_s": self.linears_s,
            "attention_s": self.attention_s,
            "collectives_s": self.collectives_s,
            "sampling_s": self.sampling_s,
            "masks_s": self.masks_s,
        }


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
