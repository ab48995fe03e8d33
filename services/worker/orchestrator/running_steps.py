"""The steps that were sent to the ranks and are not done, and the checks of the ranks meanwhile."""

import asyncio
from collections import deque
from collections.abc import Callable

from services.worker.orchestrator.health_monitor import HealthMonitor
from services.worker.rank_protocol.engine_info import MAX_OUTSTANDING
from services.worker.rank_protocol.failures import Failure, engine_error
from services.worker.rank_protocol.plan import StepPlan, StepResult


class RunningSteps:
    """Steps in the order of their submission.

    Args:
        health: Watches the ranks while steps run.
        on_failure: Called with what it finds.

    Attributes:
        num_sent: Number of steps since the last start.
        health: The monitor of the last start.
    """

    def __init__(self, health: HealthMonitor, on_failure: Callable[[Failure], None]) -> None:
        self.num_sent = 0
        self.health = health
        self._on_failure = on_failure
        self._steps: deque[tuple[StepPlan, asyncio.Future[StepResult]]] = deque()  # oldest first
        self._timer: asyncio.TimerHandle | None = None  # of the next check

    def __len__(self) -> int:
        """Return the number of steps that are not done."""
        return len(self._steps)

    @property
    def step_ids(self) -> tuple[int, ...]:
        """Ids of the steps that are not done."""
        return tuple(plan.step_id for plan, _ in self._steps)

    def add_step(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        """Return the future result of a step that is being sent.

        Raises:
            RuntimeError: Too many steps are not done.
        """
        if len(self._steps) >= MAX_OUTSTANDING:
            raise RuntimeError(f"step {plan.step_id} was submitted before {MAX_OUTSTANDING} others were done")
        future: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
        self._steps.append((plan, future))
        if self._timer is None:
            loop = future.get_loop()
            self.health.begin_watch(loop.time())
            self._timer = loop.call_later(self.health.interval_s, self._check)
        if len(self._steps) == 1:
            self.health.begin_step(plan)
        self.num_sent += 1
        return future

    def finish_oldest(self, result: StepResult) -> None:
        """Give the oldest step its result."""
        plan, future = self._steps.popleft()
        self.health.step_done(plan, result.compute_s)
        if self._steps:
            self.health.begin_step(self._steps[0][0])
        if not future.done():
            future.set_result(result)

    def fail_all(self, failure: Failure) -> bool:
        """Give all steps the error of that failure and end the checks; returns whether there were any."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        steps, self._steps = self._steps, deque()
        for _, future in steps:
            fail_future(future, failure)
        return bool(steps)

    def _check(self) -> None:
        """Check the ranks, repeatedly as long as steps run."""
        self._timer = None
        if not self._steps:
            return
        loop = asyncio.get_running_loop()
        failure = self.health.find_failure(loop.time(), self._steps[0][0], self.num_sent)
        if failure is not None:
            self._on_failure(failure)
        else:
            self._timer = loop.call_later(self.health.interval_s, self._check)


def fail_future(future: "asyncio.Future[StepResult] | asyncio.Future[None]", failure: Failure) -> None:
    """End a future with the error of a failure, unless it is done."""
    if not future.done():
        future.set_exception(engine_error(failure))
        future.exception()  # retrieved, so that asyncio does not warn
