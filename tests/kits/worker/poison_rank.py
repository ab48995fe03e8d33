"""A fork server whose ranks die of a real SIGSEGV when they compute a prompt that contains certain tokens."""

import os
import signal

from services.worker.engine.rank import fork_server, runner
from services.worker.engine.rank.process import end_process
from services.worker.rank_protocol.plan import StepPlan, StepResult

POISON = [7, 77, 7, 77]


def _has_poison(plan: StepPlan) -> bool:
    prompts = (new.token_ids for new in plan.admit)
    return any(
        tokens[index : index + len(POISON)] == POISON for tokens in prompts for index in range(len(tokens))
    )


def main() -> None:
    """Entry point of the fork server, with a step that crashes."""
    step = runner.Runner.run_step

    def crashing(self: runner.Runner, plan: StepPlan) -> StepResult:
        if _has_poison(plan):
            os.kill(os.getpid(), signal.SIGSEGV)
        return step(self, plan)

    runner.Runner.run_step = crashing  # type: ignore[method-assign]
    end_process(fork_server.main())


if __name__ == "__main__":
    main()
