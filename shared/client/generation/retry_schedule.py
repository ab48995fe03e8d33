"""Decides when an attempt is published (again) until a group has it. Pure: time is an argument.

An attempt is published again after pauses that double while no group answers. An attempt that the fleet could
not take is published after its pause, within the client's `RetryBudget`.
"""

from enum import Enum, auto

from shared.client.settings import ClientSettings
from shared.flow.backoff import backoff_s
from shared.flow.retry_budgets import RetryBudget

MAX_ACCEPT_PAUSE_S = 2.0
QUEUE_PUBLISHES = (
    2  # that one router gets; those that follow go to all, since one that stands still may get more
)
BUDGET_PAUSE_S = 0.05


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
