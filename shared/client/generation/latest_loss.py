"""Remembers the latest loss of a group, whose last frames may still be on their way. Pure."""

from dataclasses import dataclass

from shared.client.generation.commands import NOTHING, Commands
from shared.client.generation.generation_state import GenerationState
from shared.client.generation.heard_leaders import LAST_FRAMES_S
from shared.messages import GroupDown


@dataclass(frozen=True, slots=True)
class LatestLoss:
    """A `GroupDown` and when it came."""

    down: GroupDown
    at: float

    def is_repeated_by(self, down: GroupDown, now: float) -> bool:
        """Whether `down` is the same news from another router."""
        same = (self.down.group, self.down.instance_id) == (down.group, down.instance_id)
        return same and not self.is_over(now)

    def is_over(self, now: float) -> bool:
        """Whether no frames of the group are expected any more."""
        return now - self.at > LAST_FRAMES_S

    def on_accepted(self, state: GenerationState, now: float) -> Commands:
        """A request was accepted; if the lost group did so before it was lost, the request has lost it.

        A request that was published after the news was accepted by a group that is back.
        """
        if state.offered_at >= self.at:
            return NOTHING
        return state.on_group_down(self.down.group, self.down.instance_id, self.down.reason, now)
