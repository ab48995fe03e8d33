"""Decides when an attempt is published (again) until a group has it. Pure: time is an argument.

An attempt is published again after pauses that double while no group answers. An attempt that the fleet could
not take is published after its pause, within the client's `RetryBudget`.

`RequestWait`: the wait of one request that no group has begun: whether it may go on, until when, how often it
asks. Pure.

What is away (a broker, a router, a group) is waited for as long as `ClientSettings.wait_s` says. A model that
a host can load is waited for until the request's deadline: routers refuse the request with the reason
`waking`, and count those that come again, so that the model is loaded.
"""

from enum import Enum, auto

from shared.client.generation.client_context import ClientContext
from shared.client.settings import ClientSettings
from shared.errors import RyzError
from shared.flow.backoff import backoff_s
from shared.flow.retry_budgets import RetryBudget
from shared.guests.needs import GUEST_CANNOT
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
MAX_ACCEPT_PAUSE_S = 2.0
QUEUE_PUBLISHES = (
    2  # that one router gets; those that follow go to all, since one that stands still may get more
)
BUDGET_PAUSE_S = 0.05


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


class PublishDecision(Enum):
    """What to do about an attempt that no group has."""

    WAIT = auto()
    PUBLISH = auto()
    GIVE_UP = auto()  # it was published as often as it may be


class RetrySchedule:
    """The publishes of one attempt.

    Attributes:
        num_publishes: How often the attempt was published.
        published_at: When it was, or will be, published first.
        due: When there is something to do.
        no_router: The broker has said that no router listens.
    """

    __slots__ = ("_settings", "due", "no_router", "num_publishes", "published_at")

    def __init__(self, settings: ClientSettings, now: float) -> None:
        self._settings = settings
        self.start_published(now)

    def start_published(self, now: float) -> None:
        """A new attempt is published now."""
        self.no_router = False
        self.num_publishes = 1
        self.published_at = now
        self.due = now + self._settings.constants.accept_timeout_s

    def start_paused(self, until: float) -> None:
        """A new attempt is published at `until`."""
        self.no_router = False
        self.num_publishes = 0
        self.published_at = self.due = until

    @property
    def asks_all(self) -> bool:
        """Whether the last publish goes to all routers."""
        return self.num_publishes > QUEUE_PUBLISHES

    @property
    def will_ask_all(self) -> bool:
        """Whether the next publish goes to all routers."""
        return self.num_publishes >= QUEUE_PUBLISHES

    def note_no_router(self) -> None:
        """The broker says that no router listens."""
        self.no_router = True

    def decide(self, now: float, budget: RetryBudget | None, *, connected: bool) -> PublishDecision:
        """Decide whether to publish now; if not, `due` is later.

        Args:
            now: Seconds on the client's clock.
            budget: Limits how many requests are published in a second; None: no limit.
            connected: Whether the broker can be reached; without it nothing counts as a publish.
        """
        if now < self.due:
            return PublishDecision.WAIT
        if not connected:
            self._postpone(now)
            return PublishDecision.WAIT
        if self.num_publishes >= self._settings.constants.max_publishes:
            return PublishDecision.GIVE_UP
        if budget is not None and not budget.take_retry(now):
            self.due = now + BUDGET_PAUSE_S
            return PublishDecision.WAIT
        self._postpone(now)
        self.num_publishes += 1
        return PublishDecision.PUBLISH

    def try_publish_early(self, now: float, budget: RetryBudget) -> bool:
        """Whether to publish before it is due, because the publish before may have gone to a lost group.

        It does not count as a publish, so that a fleet that loses many groups at once uses none up.
        """
        if not budget.take_retry(now):
            return False
        first_s = self._settings.constants.accept_timeout_s
        self.due = now + backoff_s(self.num_publishes - 1, first_s, MAX_ACCEPT_PAUSE_S)
        return True

    def _postpone(self, now: float) -> None:
        """Decide again after the pause that follows that many publishes."""
        first_s = self._settings.constants.accept_timeout_s
        pause_s = backoff_s(self.num_publishes, first_s, MAX_ACCEPT_PAUSE_S)
        self.due = now + (pause_s if self.num_publishes else first_s)
