"""How often nested repetitions of an expression repeat their inside, and how long a text they write out.

llguidance unrolls both where a text is forced, at a cost that grows faster than their length.
"""

import re
from typing import NamedTuple

from services.worker.text.grammars.limits import GrammarLimits

_COUNT = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")


class Repetitions(NamedTuple):
    """What the repetitions of an expression amount to.

    Attributes:
        most: The largest product of counts inside each other; 1 without any.
        literals: Characters that it writes out, least counts multiplied; classes are none.
    """

    most: int
    literals: int


def check_repetitions(pattern: str, limits: GrammarLimits, *, literals: bool = True) -> None:
    """Refuses an expression, or a grammar that has some.

    Args:
        pattern: In ECMA's or Rust's syntax, or Lark's.
        literals: Checks what is written out as well.

    Raises:
        ValueError: A limit is exceeded.
    """
    found = repetitions_of(pattern)
    if found.most > limits.repetitions:
        raise ValueError(f"its repetitions multiply to more than {limits.repetitions}")
    if literals and found.literals > limits.literal_chars:
        raise ValueError(f"its repetitions write out more than {limits.literal_chars} characters")


def repetitions_of(pattern: str) -> Repetitions:
    """Returns what the repetitions of an expression amount to."""
    groups, atom, at = [[1, 0]], [1, 0], 0  # the open groups, the last one innermost; the last atom
    while at < len(pattern):
        char, begin = pattern[at], at
        at += 1
        if char == "(":
            groups.append([1, 0])
            continue
        found = _COUNT.match(pattern, begin)
        if found:
            counts = int(found[1]), int(found[2] or found[1])
            groups[-1][1] += atom[1] * (counts[0] - 1)
            atom = [atom[0] * max(1, *counts), atom[1] * counts[0]]
            groups[-1][0] = max(groups[-1][0], atom[0])
            at = found.end()
            continue
        if char == ")" and len(groups) > 1:
            atom = groups.pop()
        elif char == "[":
            atom, at = [1, 0], _class_end(pattern, at)
        elif char in "*+?.|^$":
            continue
        else:
            atom, at = [1, 1], at + (char == "\\")
        groups[-1] = [max(groups[-1][0], atom[0]), groups[-1][1] + atom[1]]
    return Repetitions(max(group[0] for group in groups), sum(max(0, group[1]) for group in groups))


def _class_end(pattern: str, at: int) -> int:
    """Returns the index after the class whose content begins at `at`."""
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1
