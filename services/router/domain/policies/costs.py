"""The cost of serving a turn on a group, in seconds, by which `hybrid` compares groups.

    cost = wait + prompt + move + adapter + price * lead

- wait: until the group begins with the prompt.
- prompt: to compute what is new in the request.
- move: to have the session's KV there. It is 0 where the KV is already, else the cheaper of fetching and
  computing it again, by the group's own measurements.
- adapter: to have the request's adapter there; 0 where it is already.
- lead: how far the group is ahead of its fair share of all work. It delays no request now but keeps queues
  from growing there later, so it counts at a low price. This is the rule of drift plus penalty (Neely,
  "Stochastic Network Optimization", 2010): the lead of a group stays within the cost of a move over the
  price, and sessions move no more often than that needs.
"""

from dataclasses import dataclass

from services.router.domain.decision import FleetView, GroupView, RequestFacts
from services.router.domain.groups.group import ASSUMED_TOKENS_PER_S
from services.router.domain.policies.base import adapter_s


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a session's KV to a group.

    Attributes:
        seconds: Seconds until the KV is there.
        computed_tokens: Tokens that are computed again; 0 if they are fetched.
    """

    seconds: float = 0.0
    computed_tokens: int = 0


STAYS = Move()


@dataclass(frozen=True, slots=True)
class Costs:
    """The rates to assume of a group that has measured none, and the price of a second of lead in seconds."""

    assumed_tokens_per_s: float = ASSUMED_TOKENS_PER_S
    assumed_fetch_tokens_per_s: float = 20_000.0
    assumed_fetch_s: float = 0.01
    lead_price: float = 0.2

    def move(self, request: RequestFacts, group: GroupView, last: GroupView | None) -> Move:
        """The move of the session's KV to `group` from `last`; None if it is on no group any more."""
        tokens = request.session_tokens
        if not tokens or group is last:
            return STAYS
        recompute_s = tokens / self._compute_rate(group)
        if group.store and (last is None or last.store):
            rate = group.fetch_tokens_per_s
            fetch_s = (
                group.fetch_s + tokens / rate
                if rate
                else self.assumed_fetch_s + tokens / self.assumed_fetch_tokens_per_s
            )
            if fetch_s < recompute_s:
                return Move(fetch_s)
        return Move(recompute_s, tokens)

    def total_s(self, request: RequestFacts, group: GroupView, last: GroupView | None) -> float:
        """The whole cost; see the module's text."""
        prompt_s = request.prompt_tokens / self._compute_rate(group)
        move_s = self.move(request, group, last).seconds
        return self.load_s(group) + prompt_s + move_s + adapter_s(request, group)

    def load_s(self, group: GroupView) -> float:
        """The part of the cost that is the same for all requests."""
        return group.wait_s + self.lead_price * group.lead_s

    def _compute_rate(self, group: GroupView) -> float:
        # what it computed of late is less than it can compute, if it had little to do
        return group.recompute_tokens_per_s or max(group.tokens_per_s, self.assumed_tokens_per_s)


def home_and_last(
    request: RequestFacts, fleet: FleetView, home: GroupView
) -> tuple[GroupView, GroupView | None]:
    """The group that the session belongs to, and the one that has its KV.

    Both are the last group, or the home if the last group is unknown. If the last group is not ready, the
    session belongs to its home, and no group has its KV.
    """
    if not request.last_group:
        return home, home
    last = fleet.find(request.last_group)
    return (last, last) if last is not None else (home, None)
