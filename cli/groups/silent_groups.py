"""Groups whose leader did not answer and that routers still know: dead, frozen, cut off, stopped, asleep."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from shared.messages import ServiceStatus

STOPPED = "stopped"  # it said so in its last heartbeat
ASLEEP = "asleep"  # the same, of a model that a host loads when it is asked for
ENDED_WELL = frozenset({STOPPED, ASLEEP})
NO_ANSWER = "no answer"  # routers take it for healthy
_SERVING = {"ready", "tripped"}  # it was heard a moment ago, and may answer yet


@dataclass(frozen=True, slots=True)
class SilentGroup:
    """A group by the router that heard it last.

    Attributes:
        state: The router's state of it; `no answer` if the router takes it for healthy.
        lost: Why the router declared it lost; empty if it did not.
        cause: What a heartbeat said of its leader then: `ended`, `frozen`, `hung`, or nothing.
        heard_s_ago: Seconds since its last heartbeat.
        phase: Of its model, if a host offers that; see `ModelState`.
    """

    group: str
    instance_id: str
    state: str
    model: str
    lost: str
    cause: str
    heard_s_ago: float
    phase: str = ""

    @property
    def story(self) -> str:
        """Why it was declared lost, and since when it is silent; of a stopped group when it ended."""
        if self.state == ASLEEP:
            ago = f"{self.heard_s_ago:.0f} s ago"
            return f"was put to sleep {ago}; the next request for {self.model} wakes it"
        if self.state == STOPPED:  # where a host loads models, by command of a router or an operator
            return f"ended {'' if self.phase else 'by itself '}{self.heard_s_ago:.0f} s ago"
        why = self.cause or self.lost
        why = why and f"{why}, "
        return f"{why}last heard {self.heard_s_ago:.0f} s ago"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def silent_groups(services: Iterable[ServiceStatus]) -> list[SilentGroup]:
    """Return the groups that routers know of and whose leader did not answer, by name."""
    services = list(services)
    answered = {one.detail.get("group") for one in services if one.service == "worker"}
    silent: dict[str, SilentGroup] = {}
    phases = _phases(services)
    for router in services:
        for seen in router.detail.get("groups", ()) if router.service == "router" else ():
            name, age_s = str(seen.get("group")), float(seen.get("heartbeat_age_s", 0))
            known = silent.get(name)
            if name in answered or (known is not None and known.heard_s_ago <= age_s):
                continue
            state, model = str(seen.get("state", "?")), str(seen.get("model", ""))
            phase = phases.get(model, "")
            if (state, phase) == (STOPPED, "asleep"):
                state = ASLEEP
            silent[name] = SilentGroup(
                group=name,
                instance_id=str(seen.get("instance_id", "?")),
                state=NO_ANSWER if state in _SERVING else state,
                model=model,
                lost=str(seen.get("lost", "")),
                cause=str(seen.get("lost_cause", "")),
                heard_s_ago=age_s,
                phase=phase,
            )
    return [silent[name] for name in sorted(silent)]


def _phases(services: Iterable[ServiceStatus]) -> dict[str, str]:
    """The phases of the models that hosts offer, as a router sees them, by the model's name."""
    offered = (one.detail.get("models", {}) for one in services if one.service == "router")
    return {name: phase for phases in offered for phase, names in phases.items() for name in names}
