"""The wait of one request that no group has begun: whether it may go on, until when, how often it asks. Pure.

What is away (a broker, a router, a group) is waited for as long as `ClientSettings.wait_s` says. A model that
a host can load is waited for until the request's deadline: routers refuse the request with the reason
`waking`, and count those that come again, so that the model is loaded.
"""

from shared.client.generation.client_context import ClientContext
from shared.errors import RyzError
from shared.guest_needs import GUEST_CANNOT
from shared.messages import GenerateRequest

WAKING = "waking"
# Reasons that do not pass however long the request waits.
FINAL_REASONS = frozenset(
    {"model_failed", "model_unloaded", "model_too_large", "adapter_changed", GUEST_CANNOT}
)
MIN_PAUSE_S = 0.1  # the longest pause while few wait for a model: one that is ready gets its requests soon
# Routers forget a wish for a model 3 s after the request was last offered.
MAX_PAUSE_S = 2.0
MEAN_JITTER = 0.75


class RequestWait:
    """The wait of one request.

    Attributes:
        active: It waits, and is counted among those of its client.
        wakes: The last refusal said that the model is to be loaded.
        until: When the wait ends.
    """

    __slots__ = ("_context", "_deadline", "_request", "_size", "active", "until", "wakes")

    def __init__(
        self, request: GenerateRequest, context: ClientContext, *, now: float, deadline: float
    ) -> None:
        self.active = self.wakes = False
        self.until = min(deadline, now + context.settings.wait_s)
        self._request = request
        self._context = context
        self._deadline = deadline
        self._size = 0

    @property
    def longest_pause_s(self) -> float | None:
        """The longest pause before the request is offered again; None: as after any refusal.

        The more wait the longer it is, so that all of them together stay within the client's `RetryBudget`.
        """
        if not self.wakes:
            return None
        rate = self._context.settings.constants.retries_per_s
        even_s = self._context.waiting.num_requests / (rate * MEAN_JITTER)
        return min(MAX_PAUSE_S, max(MIN_PAUSE_S, even_s))

    def note_refusal(self, error: RyzError, now: float) -> None:
        """A router has refused the request, or none has answered."""
        wakes = error.code == "unavailable" and error.data.get("reason") == WAKING
        if wakes:
            self.until = self._deadline
        elif self.wakes:  # the router that knew of the model is away, and gets its time from here on
            self.until = min(self._deadline, now + self._context.settings.wait_s)
        self.wakes = wakes

    def is_over(self, error: RyzError, now: float) -> bool:
        """Whether the request need not wait: the time is over, or would be before a retry may succeed."""
        retry_after_s = error.retry_after_s or 0.0
        longest_s = self._deadline - now if self.wakes else self._context.settings.wait_s
        return now >= self.until or retry_after_s > longest_s

    def try_start(self) -> bool:
        """Counts the request among those that wait; False: as many as may wait do so already."""
        if self.active:
            return True
        self._size = self._context.waiting.try_add(self._request)
        if not self._size:
            return False
        self.active = True
        self._context.stats.waiting += 1
        self._context.stats.waited += 1
        return True

    def stop(self) -> None:
        """A group has the request, or it has ended."""
        self.wakes = False
        if self.active:
            self.active = False
            self._context.stats.waiting -= 1
            self._context.waiting.remove(self._request, self._size)
