"""How often the nested repetitions of a regular expression repeat their inside: 6 in `(a{2}){3}`.

llguidance unrolls them where a text is forced, at a cost that grows faster than their product.
"""

import re

_COUNT = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")


def most_repetitions(pattern: str) -> int:
    """Returns the largest product of counts inside each other; 1 without any.

    Args:
        pattern: A regular expression in ECMA's or Rust's syntax, or a grammar that has some.
    """
    products, atom, at = [1], 1, 0  # of the open groups, the last one innermost; of the last atom
    while at < len(pattern):
        char, begin = pattern[at], at
        at += 1
        if char == "\\":
            atom, at = 1, at + 1
        elif char == "[":
            atom, at = 1, _class_end(pattern, at)
        elif char == "(":
            products.append(1)
        elif char == ")" and len(products) > 1:
            atom = products.pop()
            products[-1] = max(products[-1], atom)
        elif found := _COUNT.match(pattern, begin):
            atom *= max(1, int(found[1]), int(found[2] or 0))
            products[-1] = max(products[-1], atom)
            at = found.end()
        elif char not in "*+?":
            atom = 1
    return max(products)


def _class_end(pattern: str, at: int) -> int:
    """Returns the place after the class whose content begins at `at`."""
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1
