"""A rank that dies of a real SIGSEGV when it computes a prompt that contains certain tokens."""

import os
import signal

from services.worker.engine.rank import runner
from services.worker.rank_protocol.plan import StepPlan, StepResult

POISON = [7, 77, 7, 77]


def _has_poison(plan: StepPlan) -> bool:
    prompts = (new.token_ids for new in plan.admit)
    return any(
        tokens[place : place + len(POISON)] == POISON for tokens in prompts for place in range(len(tokens))
    )


def main() -> None:
    """Entry point of the rank's process, with a step that crashes."""
    from services.worker.engine.__main__ import main as rank  # noqa: PLC0415

    step = runner.Runner.run_step

    def crashing(self: runner.Runner, plan: StepPlan) -> StepResult:
        if _has_poison(plan):
            os.kill(os.getpid(), signal.SIGSEGV)
        return step(self, plan)

    runner.Runner.run_step = crashing  # type: ignore[method-assign]
    rank()


if __name__ == "__main__":
    main()
