"""What a router knows of all groups, from heartbeats, requests sent and losses; makes views for decisions.

Pure: handlers bring heartbeats and time. Changes are returned, and losses recorded for `LossReports`, which
takes them with `take_losses`.
"""

from collections import deque
from math import inf
from typing import Literal

from services.router.domain.decision import FleetView, GroupView
from services.router.domain.groups.balance import WorkShares
from services.router.domain.groups.fleet_limits import FleetLimits
from services.router.domain.groups.group import Group
from services.router.domain.groups.live_view import LiveView, Needs, Wanted, no_needs, split_by_standing
from services.router.domain.groups.loss import REASONS, Loss
from services.router.domain.groups.rivals import Rivals
from services.router.domain.groups.silence import CommonSilence, SilenceLimits
from services.router.domain.router_count import RouterCount
from shared.flow.circuit import Circuit
from shared.messages import DownReason, GroupDown, Heartbeat, ModelCard

Change = Literal["joined", "restarted", "returned", "tripped", "changed", "same", "ignored", "rival", "lost"]
_LEAVING = ("draining", "stopped")
_SILENCE = 3  # intervals


class Fleet:
    """All groups that were heard lately, by name. `now` is monotonic seconds everywhere.

    Attributes:
        work: What groups have computed and were given lately.
        rivals: Leaders that share a group's name.
        routers: How many routers share the requests.
    """

    def __init__(self, limits: FleetLimits) -> None:
        self.work = WorkShares(limits.half_life_s)
        self._limits = limits
        self._groups: dict[str, Group] = {}
        self.rivals = Rivals()
        self.routers = RouterCount()
        self._unsettled_until = -inf
        self._silence = CommonSilence()
        self._patience = SilenceLimits(limits)
        self._losses: deque[Loss] = deque(maxlen=2 * limits.max_groups)

    def observe(self, heartbeat: Heartbeat, now: float) -> Change:
        """Take in a heartbeat. A new instance id starts the group afresh; an older number is ignored."""
        silence_s = self._silence.length_s(now, heartbeat.interval_ms / 1000)
        if silence_s:
            for group in self._groups.values():
                group.excuse_common_silence(silence_s)
        self._silence.end(now)
        was_ready = self.is_ready(heartbeat.group, now)
        change = self._observe(heartbeat, now)
        if not was_ready and self.is_ready(heartbeat.group, now):
            self._welcome(self._groups[heartbeat.group], now)
        return change

    def _observe(self, heartbeat: Heartbeat, now: float) -> Change:
        group = self._groups.get(heartbeat.group)
        if group is None:
            if len(self._groups) >= self._limits.max_groups:
                return "ignored"
            self._groups[heartbeat.group] = self._new(heartbeat, now)
            return "joined"
        if heartbeat.instance_id != group.heartbeat.instance_id:
            return self._replace(group, heartbeat, now)
        if heartbeat.seq <= group.heartbeat.seq:
            return self._restart_or_ignore(group, heartbeat, now)
        return self._hear(group, heartbeat, now)

    def _hear(self, group: Group, heartbeat: Heartbeat, now: float) -> Change:
        """The next heartbeat of an instance that is known."""
        was_lost, state = group.lost, group.heartbeat.state
        if group.ignores_heartbeats(now):
            return "ignored"
        cause = heartbeat.vitals.leader if heartbeat.vitals is not None else ""
        if cause in REASONS:
            return self._take_end(group, heartbeat, cause, now)
        # after a silence the present rate says nothing about the time before
        elapsed = min(now - group.heard_at, _SILENCE * heartbeat.interval_ms / 1000)
        self.work.computed.add(group.name, now, heartbeat.load.tokens_per_s * elapsed)
        if group.observe(heartbeat, now):
            return "tripped"
        if was_lost:
            return "returned"
        return "changed" if heartbeat.state != state else "same"

    def _take_end(self, group: Group, heartbeat: Heartbeat, cause: str, now: float) -> Change:
        """A heartbeat says that the leader does not run."""
        group.heartbeat = heartbeat
        if cause == "ended":
            group.ignore_heartbeats_until(now + self._limits.hold_s)
        if group.lost:
            return "ignored"
        self._lose(group, REASONS[cause], now, cause=cause)
        return "lost"

    def count_sent(self, name: str, prompt_tokens: int, now: float, answer_tokens: int = 0) -> None:
        """This router sent the group a request of about so many tokens to compute and to generate."""
        if group := self._groups.get(name):
            requests = group.count_sent(prompt_tokens, now, self.routers.count(now))
            self.work.given.add(name, now, requests * (prompt_tokens + answer_tokens))

    def mark_lost(self, name: str, reason: DownReason, now: float) -> bool:
        """Give the group up until its next heartbeat; returns whether it was not lost before.

        `no_responders` is no loss for a group that is leaving: it takes no work but runs what it has. While
        groups come back to a broker that was away the group is passed over, and that is no loss either.
        """
        group = self._groups.get(name)
        if group is None or group.lost:
            return False
        if reason == "no_responders" and group.heartbeat.state in _LEAVING:
            return False
        if reason == "no_responders" and now < self._unsettled_until:
            group.mark_lost(reason)
        else:
            self._lose(group, reason, now)
        return True

    def on_disconnect(self, instance_id: str, now: float) -> None:
        """The broker reports that a connection of this leader was ended by the leader's side."""
        for group in self._groups.values():
            if group.heartbeat.instance_id == instance_id:
                group.ignore_heartbeats_until(now + self._limits.hold_s)
                if not group.lost:
                    self._lose(group, "disconnected", now)

    def on_group_down(self, news: GroupDown, now: float) -> None:
        """Another router gave this instance up.

        This router does not believe in a silence if it has heard the group lately: the other router may be
        the one that hears nothing. A loss that it believes is not published again, so that a false one does
        not go round.
        """
        group = self._groups.get(news.group)
        if group is None or group.heartbeat.instance_id != news.instance_id:
            return
        if news.reason == "disconnected":
            group.ignore_heartbeats_until(now + self._limits.hold_s)
        if group.lost or (news.reason == "no_responders" and group.heartbeat.state in _LEAVING):
            return
        seen = news.cause in REASONS  # beside the leader, which proves more than a router's own ears
        if (
            news.reason == "silent"
            and not seen
            and now - group.heard_at < self._patience.timeout_s(group) / 2
        ):
            return
        self._lose(group, news.reason, now, own=False, cause=news.cause)

    def expire(
        self, now: float, proven_at: float | None = None, delay_s: float = 0.0, pressure: float = 0.0
    ) -> list[str]:
        """Mark silent groups as lost, and forget those that are silent for long; returns the lost ones.

        Args:
            proven_at: Up to when silence counts, see `SelfEchoMonitor`; None: up to now.
            delay_s: By how much the broker delayed this router's own messages lately.
            pressure: How busy this router's machine is, as in `Vitals`. It may have become so since the last
                heartbeat of a group, and then all that passes through it is late.
        """
        limits = self._patience
        limits.note_delays(delay_s, pressure, now)
        lost, heard_up_to = [], now if proven_at is None else proven_at
        intervals = [group.heartbeat.interval_ms for group in self._groups.values()]
        common_s = self._silence.length_s(heard_up_to, min(intervals) / 1000) if intervals else 0.0
        for name, group in list(self._groups.items()):
            if heard_up_to - group.heard_at > self._limits.forget_s:
                del self._groups[name]
                self.rivals.forget(name)
                continue
            timeout_s = limits.timeout_s(group)
            silent_s = group.own_silence_s(heard_up_to, common_s, limits.most_common_s(group))
            if not group.lost and silent_s > timeout_s:
                self._lose(group, "silent", now, silent_s=silent_s, limit_s=timeout_s)
                lost.append(name)
        return lost

    def unsettle(self, until: float) -> None:
        """The broker is or was away: groups come back to it until then."""
        self._unsettled_until = until

    def excuse(self, seconds: float) -> None:
        """This router could not listen for so long: that time counts as silence of no group."""
        for group in self._groups.values():
            group.excuse_missed(seconds)

    def take_losses(self) -> list[Loss]:
        """The losses since the last call, in order."""
        losses, self._losses = list(self._losses), deque(maxlen=self._losses.maxlen)
        return losses

    def view(
        self, model: str, now: float, avoid: str = "", weights: str = "", adapter: str = "",
        *, needs: Needs = no_needs,
    ) -> FleetView:  # fmt: skip
        """The groups of a model as of now; use it before the fleet changes.

        If no group is ready, groups whose breaker was tripped by losses count as ready.

        Args:
            avoid: A group to leave out if another one is ready.
            weights: The fingerprint of the weights that began an answer; groups with other weights are left
                out if one has these.
            adapter: The fingerprint of the adapter that the request runs with; empty: none.
            needs: Guests that lack one of these are left out.
        """
        standing = split_by_standing(self._groups.values(), model, now, avoid, weights, needs=needs)
        known = standing.ready or standing.away
        models = () if known else tuple(card.name for card in self.models(now))
        lead = self.work.leads(standing.ready.values(), now)

        def see(group: Group) -> GroupView:
            return group.view(now, lead(group), adapter)

        return LiveView(Wanted(model, adapter), standing, see, models)

    def instance_of(self, name: str) -> str:
        """The instance of the group that requests are sent to; an empty text if the group is not known."""
        group = self._groups.get(name)
        return "" if group is None else group.heartbeat.instance_id

    def find(self, name: str) -> Group | None:
        """The group of that name."""
        return self._groups.get(name)

    def is_ready(self, name: str, now: float) -> bool:
        """Whether the group may be given requests."""
        group = self._groups.get(name)
        return group is not None and group.standing(now) == "ready"

    def models(self, now: float) -> list[ModelCard]:
        """The models of ready groups, one card for each name, in the order of the names."""
        ready = (group for group in self._groups.values() if group.standing(now) == "ready")
        cards = {group.heartbeat.model.name: group.heartbeat.model for group in ready}
        return [cards[name] for name in sorted(cards)]

    def groups(self) -> list[Group]:
        """All groups in the order of their names, for status and metrics."""
        return [self._groups[name] for name in sorted(self._groups)]

    def _welcome(self, group: Group, now: float) -> None:
        """Give a group that comes (back) its share of past work, or all sessions would move there at once."""
        model = group.heartbeat.model.name
        weights = {
            other.name: other.heartbeat.weight
            for other in self._groups.values()
            if other is not group and other.heartbeat.model.name == model and other.standing(now) == "ready"
        }
        self.work.give_fair_share(group, weights, now)

    def _replace(self, group: Group, heartbeat: Heartbeat, now: float) -> Change:
        name, rival, rivals = group.name, heartbeat.instance_id, self.rivals
        if rivals.is_former(name, rival) and not (group.lost and rivals.lives(name, rival, now)):
            is_rival = heartbeat.state not in _LEAVING and rivals.heard(name, rival, now)
            return "rival" if is_rival else "ignored"
        if not group.lost and group.heartbeat.state not in _LEAVING:
            self._lose(group, "silent", now)  # it was started again before its time limit was over
        rivals.replaced(name, group.heartbeat.instance_id, now)
        self._groups[group.name] = self._new(heartbeat, now)
        return "restarted"

    def _restart_or_ignore(self, group: Group, heartbeat: Heartbeat, now: float) -> Change:
        """A heartbeat's number is not higher: it is late, or the leader was started again.

        A container gives a new process the host name and process id of the last one, so the same instance id.
        Number 0, and any lower number of a lost group, come from a new instance.
        """
        if heartbeat.seq and not (group.lost and heartbeat.seq < group.heartbeat.seq):
            return "ignored"
        if heartbeat.seq and group.ignores_heartbeats(now):
            return "ignored"
        self._groups[group.name] = self._new(heartbeat, now)
        return "restarted"

    def _lose(
        self,
        group: Group,
        reason: DownReason,
        now: float,
        *,
        own: bool = True,
        cause: str = "",
        silent_s: float = 0.0,
        limit_s: float = 0.0,
    ) -> None:
        if group.heartbeat.state == "stopped":
            reason = "stopped"
        leaving = reason == "stopped" or group.heartbeat.state in _LEAVING
        tripped = not leaving and group.breaker.count_failure(now)
        group.mark_lost(reason, cause)
        name, instance_id = group.name, group.heartbeat.instance_id
        self._losses.append(Loss(name, instance_id, reason, own, leaving, tripped, cause, silent_s, limit_s))

    def _new(self, heartbeat: Heartbeat, now: float) -> Group:
        return Group(heartbeat, now, Circuit(self._limits.breaker), self._limits.load)
