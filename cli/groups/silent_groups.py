"""Groups whose leader did not answer, and that routers still know of: dead, frozen, cut off, or gone.

A silent leader is what somebody who looks at a fleet wants to see first, and only routers can tell of it.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from shared.messages import ServiceStatus

_SERVING = {"ready", "tripped"}  # it was heard a moment ago, and had no time to answer


@dataclass(frozen=True, slots=True)
class SilentGroup:
    """A group as the router sees it that heard it last.

    state: `no answer` where that router does not know either that anything is wrong. lost: why it was given
    up, in a router's words; empty: it was not.
    """

    group: str
    instance_id: str
    state: str
    model: str
    lost: str
    heard_s_ago: float

    @property
    def story(self) -> str:
        """Since when it is silent, and why it was given up."""
        why = f"{self.lost}, " if self.lost else ""
        return f"{why}last heard {self.heard_s_ago:.0f} s ago"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def silent_groups(services: Iterable[ServiceStatus]) -> list[SilentGroup]:
    """All that the routers among these services know of, less those whose leader is among them; by name."""
    services = list(services)
    answered = {one.detail.get("group") for one in services if one.service == "worker"}
    silent: dict[str, SilentGroup] = {}
    for router in services:
        for seen in router.detail.get("groups", ()) if router.service == "router" else ():
            name, age_s = str(seen.get("group")), float(seen.get("heartbeat_age_s", 0))
            known = silent.get(name)
            if name in answered or (known is not None and known.heard_s_ago <= age_s):
                continue
            state = str(seen.get("state", "?"))
            silent[name] = SilentGroup(
                group=name,
                instance_id=str(seen.get("instance_id", "?")),
                state="no answer" if state in _SERVING else state,
                model=str(seen.get("model", "")),
                lost=str(seen.get("lost", "")),
                heard_s_ago=age_s,
            )
    return [silent[name] for name in sorted(silent)]
