"""When a request is offered to the fleet (again), until a group has it. Pure: time is an argument.

An attempt is published, and published again after pauses that double as long as nobody answers; one that
waits for a fleet that could not take it is published when its pause is over, within the client's budget.
"""

from shared.backoff import backoff_s
from shared.client.generation.attempts import RetryBudget
from shared.client.settings import ClientSettings
from shared.errors import Unavailable

MAX_ACCEPT_PAUSE_S = 2.0
BUDGET_PAUSE_S = 0.05


class Offers:
    """The offers of one attempt. due: when there is something to do. count: how often it was published.
    since: when it was published first.

    no_router: the broker has said that no router listens.
    """

    __slots__ = ("_settings", "count", "due", "no_router", "since")

    def __init__(self, settings: ClientSettings, now: float) -> None:
        self._settings = settings
        self.published(now)

    def published(self, now: float) -> None:
        """A new attempt has been published right now."""
        self.no_router = False
        self.count = 1
        self.since = now
        self.due = now + self._settings.accept_timeout_s

    def wait(self, until: float) -> None:
        """A new attempt is to be published at that time."""
        self.no_router = False
        self.count = 0
        self.since = self.due = until

    @property
    def exhausted(self) -> bool:
        """Nobody has answered any of the offers that an attempt may have."""
        return self.count >= self._settings.max_publishes

    def again(self, now: float, budget: RetryBudget | None) -> bool:
        """Whether to publish now that the time has come; if not, `due` is later. budget: to be kept to."""
        if budget is not None and not budget.take(now):
            self.due = now + BUDGET_PAUSE_S
            return False
        self.postpone(now)
        self.count += 1
        return True

    def anew(self, now: float, budget: RetryBudget) -> bool:
        """Whether to publish now, before the time has come; it is no further offer, since the one before may
        have gone where nobody is. A fleet that loses many groups at once uses nobody's offers up.
        """
        if not self.count or not budget.take(now):
            return False
        self.due = now + backoff_s(self.count - 1, self._settings.accept_timeout_s, MAX_ACCEPT_PAUSE_S)
        return True

    def postpone(self, now: float) -> None:
        """Looks again after the pause that follows that many offers."""
        first_s = self._settings.accept_timeout_s
        self.due = now + (backoff_s(self.count, first_s, MAX_ACCEPT_PAUSE_S) if self.count else first_s)

    def nobody(self, request_id: str) -> Unavailable:
        """What to say when nobody took it."""
        if self.no_router:
            return Unavailable("no router is running; start one, or try again shortly", reason="no_router")
        return Unavailable(
            f"no group took request {request_id}, which was published {self.count} times", reason="no_answer"
        )
