"""Refuses work while the group's state does not allow it."""

from services.worker.orchestrator.multi_gpu_orchestrator import MultiGPUOrchestrator
from shared.errors import Unavailable


class WorkGate:
    """Refuses work while the group is not ready.

    Args:
        retry_after_s: When callers may try again while the engine is not ready.
    """

    def __init__(self, group: str, orchestrator: MultiGPUOrchestrator, retry_after_s: float) -> None:
        self._group = group
        self._orchestrator = orchestrator
        self._retry_after_s = retry_after_s

    def refusal(self) -> Unavailable | None:
        """Returns the reason for refusing work, or None if the group accepts it."""
        state = self._orchestrator.state
        if state == "ready":
            return None
        if state in {"draining", "stopped"}:
            return Unavailable(f"group {self._group} is shutting down", reason="draining")
        return Unavailable(
            f"the engine of group {self._group} is not ready",
            reason=f"engine_{state}",
            retry_after_s=self._retry_after_s,
        )
