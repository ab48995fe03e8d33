"""Weighted rendezvous hashing: which group a key prefers, without a stored map.

Each (key, group) gets a score that depends on nothing else; the highest wins. So all routers agree, also
after a restart, and when a group goes, only the keys that preferred it move.
"""

from collections.abc import Iterable
from hashlib import blake2b
from math import log

from services.router.domain.decision import GroupView

_SCALE = 2.0**-53


def score(key: str, group: str, weight: float) -> float:
    """The group's claim on the key: `-weight / ln(h)`, h uniform in (0, 1).

    `-ln(h) / weight` is an exponential variable with rate `weight`, and the smallest of several such is the
    i-th with probability `weight_i / sum(weights)`; this is its inverse. The logarithmic method of
    Schindelhauer and Schomaker, "Weighted Distributed Hash Tables" (SPAA 2005), on top of Thaler and
    Ravishankar's highest random weight.
    """
    digest = blake2b(f"{key}\0{group}".encode(), digest_size=8).digest()
    uniform = ((int.from_bytes(digest, "big") >> 11) + 0.5) * _SCALE
    return -weight / log(uniform)


def preferred(key: str, groups: Iterable[GroupView]) -> GroupView:
    """The group with the highest score; the name decides between equal ones.

    Raises:
        ValueError: there are no groups.
    """
    return max(groups, key=lambda group: (score(key, group.name, group.weight), group.name))
