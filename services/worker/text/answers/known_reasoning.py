"""The known marks of reasoning, and which of them a chat template shows."""

from services.worker.text.answers.tool_format import ReasoningMarks

REASONING = (
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarks("◁think▷", "◁/think▷"),
    ReasoningMarks("<thinking>", "</thinking>"),
    ReasoningMarks("<reasoning>", "</reasoning>"),
)


def reasoning_of(template: str) -> ReasoningMarks | None:
    """Returns the marks of the reasoning that a chat template names; None if it has none."""
    return next((marks for marks in REASONING if marks.closes in template or marks.opens in template), None)
