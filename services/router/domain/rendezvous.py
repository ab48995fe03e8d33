"""Finds the group that a key prefers by weighted rendezvous hashing, without a stored map.

Each (key, group) gets a score that depends on nothing else; the highest wins. So all routers agree, also
after a restart, and when a group goes, only the keys that preferred it move.
"""

from collections.abc import Iterable
from hashlib import blake2b
from math import log
from typing import Protocol, TypeVar

_SCALE = 2.0**-53


class WeightedNode(Protocol):
    """A group by its name, with its share of the keys."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def weight(self) -> float:
        """Its share, above 0; those of all groups need no particular sum."""
        ...


G = TypeVar("G", bound=WeightedNode)


def score(key: str, group: str, weight: float) -> float:
    """The score of a group for a key: `-weight / ln(h)`, h uniform in (0, 1).

    `-ln(h) / weight` is an exponential variable with rate `weight`, and the smallest of several such is the
    i-th with probability `weight_i / sum(weights)`; this is its inverse. The logarithmic method of
    Schindelhauer and Schomaker, "Weighted Distributed Hash Tables" (SPAA 2005), on top of Thaler and
    Ravishankar's highest random weight.
    """
    return _score(blake2b(f"{key}\0{group}".encode(), digest_size=8).digest(), weight)


def preferred(key: str, groups: Iterable[G]) -> G:
    """The group with the highest score; the name decides between equal ones.

    Of groups with the same weight the one with the highest hash wins, so the logarithm is taken only once
    for each weight: it would be a third of the time that a decision in a large fleet takes.

    Raises:
        ValueError: there are no groups.
    """
    prefix, best = f"{key}\0".encode(), dict[float, tuple[bytes, str, G]]()
    for group in groups:
        name, weight = group.name, group.weight
        digest = blake2b(prefix + name.encode(), digest_size=8).digest()
        known = best.get(weight)
        if known is None or digest > known[0] or (digest == known[0] and name > known[1]):
            best[weight] = digest, name, group
    if len(best) == 1:
        return best.popitem()[1][2]
    return max(best.values(), key=lambda claim: (_score(claim[0], claim[2].weight), claim[1]))[2]


def _score(digest: bytes, weight: float) -> float:
    uniform = ((int.from_bytes(digest, "big") >> 11) + 0.5) * _SCALE
    return -weight / log(uniform)
