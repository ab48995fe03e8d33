"""The rule by which a store gives portions of a limit to its holders. Pure; kvstate has the same in Lua.

Units for requests that wait are given as long as there are any. What a holder wants ahead of its requests is
bounded by a share of what is left: large while much is left, nothing when the limit is near. So at the end
little stays unused at holders without demand.
"""

# each holder may have ahead at most 1/4 of its even share of what is left
PARTS = 4


def fitting(count: int, lefts: list[int], units: list[int]) -> int:
    """Returns how many requests get units of all pools.

    Args:
        count: Requests that wait.
        lefts: Units that are left, of each pool.
        units: What each request needs of each pool.
    """
    found = count
    for left, each in zip(lefts, units, strict=True):
        if each > 0:
            found = min(found, max(0, left) // each)
    return found


def ahead_of(wanted: int, left: int, holders: int) -> int:
    """Returns the units that a holder gets ahead of its requests."""
    return min(wanted, max(0, left) // (PARTS * max(1, holders)))
