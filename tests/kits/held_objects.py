"""Whether a part still holds what it was given, where only its memory would show that it does."""

import sys


def num_held(objects: list[object]) -> int:
    """Counts the objects of a list that are held by something else as well.

    Args:
        objects: Made for the test, each in the list once. Literals and what a variable names are held.
    """
    (alone,) = _references([object()])
    return sum(count > alone for count in _references(objects))


def _references(objects: list[object]) -> list[int]:
    return [sys.getrefcount(one) for one in objects]
