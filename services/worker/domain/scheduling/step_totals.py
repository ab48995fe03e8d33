"""Sums over all steps of an engine. The difference of two moments is what was computed between them. Pure."""

from dataclasses import dataclass

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
