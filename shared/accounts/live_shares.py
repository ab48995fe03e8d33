"""What each tenant gets of busy groups now, from what leaders tell of their parties. Pure.

A party is a tenant, or an address where no keys are used. A leader counts what it has computed for each party
while there are several (`PartyCounts.charged`), and what it has computed in all. The difference between two
answers says who got how much of the time between them.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from shared.messages import ServiceStatus

WINDOW_S = 5.0  # shares are those of so many last seconds, if answers are that old
MAX_GROUPS = 256
_Key = tuple[str, bool]


class PartyCounts(msgspec.Struct, frozen=True, kw_only=True):
    """A party at one group.

    Attributes:
        running: Its sequences that run; a request for several choices has one for each.
        waiting: Its sequences that wait.
        weight: Of the party in busy groups.
        credit: What it may still get in this round, in tokens of a prompt; below 0: it owes that much.
        charged: Computed for it since it came, in the same tokens; counted while there are several parties.
        background: These are its requests of batches, which have credits of their own.
    """

    party: str
    running: int = 0
    waiting: int = 0
    weight: float = 1.0
    credit: float = 0.0
    charged: float = 0.0
    background: bool = False


class GroupParties(msgspec.Struct, frozen=True, kw_only=True):
    """The parties of one group, as its leader tells them (`parties` in its status).

    Attributes:
        quantum: What a party of weight 1 gets in a round, in tokens of a prompt.
        decode_tokens: What a decoded token counts, in tokens of a prompt.
        rows: The parties that have sequences, those with most of them first.
        others: How many more there are.
    """

    quantum: float
    decode_tokens: float
    rows: list[PartyCounts] = []
    others: int = 0


class _Sample(msgspec.Struct, frozen=True):
    at_s: float
    instance_id: str
    computed: int
    charged: dict[_Key, float]


class LiveShares:
    """Remembers answers of leaders for a few seconds, and shows the shares between them."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[_Sample]] = {}

    def groups(self, statuses: Iterable[ServiceStatus], now_s: float) -> list[dict[str, Any]]:
        """Takes in the answers of one moment; returns a row for each group, by name.

        Args:
            statuses: Of all services; those that lead no group are left out.
            now_s: Monotonic seconds.
        """
        shown: dict[str, dict[str, Any]] = {}
        for status in statuses:
            group = status.detail.get("group")
            parties = _parties_of(status)
            if isinstance(group, str) and parties is not None and len(shown) < MAX_GROUPS:
                shown[group] = self._group(group, status, parties, now_s)
        for gone in self._samples.keys() - shown.keys():
            del self._samples[gone]
        return [shown[name] for name in sorted(shown)]

    def _group(
        self, group: str, status: ServiceStatus, parties: GroupParties, now_s: float
    ) -> dict[str, Any]:
        charged = {(one.party, one.background): one.charged for one in parties.rows}
        computed = status.detail.get("computed_tokens")
        new = _Sample(now_s, status.instance_id, computed if isinstance(computed, int) else 0, charged)
        samples = self._samples.setdefault(group, deque())
        if samples and samples[-1].instance_id != new.instance_id:
            samples.clear()  # its counts begin again
        while len(samples) > 1 and now_s - samples[1].at_s >= WINDOW_S:
            samples.popleft()
        old = samples[0] if samples else None
        samples.append(new)
        rate = (
            None if old is None or now_s <= old.at_s else (new.computed - old.computed) / (now_s - old.at_s)
        )
        shares = _shares(charged, {} if old is None else old.charged)
        weights = sum(one.weight for one in parties.rows if not one.background)
        rows = [
            {
                "party": one.party,
                "background": one.background,
                "share": None if share is None else round(share, 4),
                "due": None if one.background else round(one.weight / weights, 4),
                "tokens_per_s": None if rate is None or share is None else round(share * rate, 1),
                "running": one.running,
                "waiting": one.waiting,
                "weight": one.weight,
                "credit": round(one.credit, 1),
            }
            for one, share in zip(parties.rows, shares, strict=True)
        ]
        return {
            "group": group,
            "model": str(status.detail.get("model", "")),
            "tokens_per_s": None if rate is None else round(rate, 1),
            "quantum": parties.quantum,
            "decode_tokens": parties.decode_tokens,
            "max_running": status.detail.get("max_running"),
            "parties": rows,
            "others": parties.others,
        }


def _shares(charged: dict[_Key, float], before: dict[_Key, float]) -> list[float | None]:
    """Returns the part of each party in what was charged meanwhile; None: nothing was."""
    if len(charged) == 1:
        return [1.0]
    grown = []
    for key, value in charged.items():
        more = value - before.get(key, 0.0)
        grown.append(value if more < 0 else more)  # it had gone, and its count began again
    total = sum(grown)
    return [one / total if total else None for one in grown]


def _parties_of(status: ServiceStatus) -> GroupParties | None:
    try:
        return msgspec.convert(status.detail.get("parties"), GroupParties)
    except msgspec.ValidationError:
        return None  # another service, or a leader of an earlier release
