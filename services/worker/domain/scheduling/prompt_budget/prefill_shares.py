"""Shares a step's tokens among the prompts that are being computed.

Half goes to the first in order, so that a long prompt always progresses; the other half to the shortest of
the rest, so that short prompts need not wait for a long one. Tokens that are left go to the first as well.
With prompts of several parties, those of light parties come first, then those of the party with the most
credit, and others get what is left.
"""

from collections.abc import Callable

from services.worker.domain.scheduling.sequence import Sequence


def shared_context(prefilling: list[Sequence]) -> int:
    """Returns how many tokens before them the tokens of the next step attend to, on average.

    Args:
        prefilling: Sequences in order of priority and arrival.
    """
    if len(prefilling) < 2:
        return prefilling[0].planned if prefilling else 0
    return (prefilling[0].planned + min(prefilling[1:], key=_after_first).planned) // 2


def share_budget(prefilling: list[Sequence], budget: int) -> list[tuple[Sequence, int]]:
    """Returns tokens per sequence, each at least 1, together at most `budget`.

    Args:
        prefilling: Sequences in order of priority and arrival.
        budget: Tokens of the step.
    """
    if not prefilling or budget < 1:
        return []
    first = prefilling[0]
    granted = min(first.remaining, budget if len(prefilling) == 1 else -(-budget // 2))
    left = budget - granted
    others = []
    for sequence in sorted(prefilling[1:], key=_after_first):
        if left == 0:
            break
        count = min(sequence.remaining, left)
        others.append((sequence, count))
        left -= count
    return [(first, granted + min(left, first.remaining - granted)), *others]


def share_among_parties(
    prefilling: list[Sequence], budget: int, standing: Callable[[Sequence], tuple[bool, float]]
) -> list[tuple[Sequence, int]]:
    """Returns the same for prompts of several parties.

    Args:
        standing: Of a sequence's party; the least goes first.
    """
    of_party: dict[str, list[Sequence]] = {}
    for sequence in prefilling:
        of_party.setdefault(sequence.party, []).append(sequence)
    if len(of_party) < 2:
        return share_budget(prefilling, budget)
    shares: list[tuple[Sequence, int]] = []
    for own in sorted(of_party.values(), key=lambda own: (standing(own[0]), own[0].order)):
        given = share_budget(own, budget)
        shares += given
        budget -= sum([count for _, count in given])
    return shares


def _after_first(sequence: Sequence) -> tuple[int, int, int]:
    return -sequence.priority, sequence.remaining, sequence.arrival
