"""Shares a step's tokens among the prompts that are being computed.

Half goes to the first in order, so that a long prompt always progresses; the other half to the shortest of
the rest, so that short prompts need not wait for a long one. Tokens that are left go to the first as well.
With prompts of several parties, answers that are resumed come first, those with least to compute before
others, then light parties, in the same way as prompts of one, then the party with the most credit, and
others get what is left. Forced runs are no prompts and go before all of these.
"""

from collections.abc import Callable

from services.worker.domain.scheduling.background import is_background
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
        standing: Whether a sequence's party asks for more than its share, and the credit that it lacks; the
            least goes first.
    """
    of_party: dict[str, list[Sequence]] = {}
    for sequence in prefilling:
        of_party.setdefault(sequence.party, []).append(sequence)
    if len(of_party) < 2:
        return share_budget(prefilling, budget)
    resumed = sorted([one for one in prefilling if one.resumed], key=_left)
    if resumed:  # they come all at once, and no more of them: each had its turn in a group that was lost
        shares = _share_in_order(resumed, budget)
        others = [one for one in prefilling if not one.resumed]
        return shares + share_among_parties(others, budget - _sum(shares), standing)
    light, heavy = list[list[Sequence]](), list[list[Sequence]]()
    for own in of_party.values():
        (heavy if standing(own[0])[0] else light).append(own)
    shares = _share_among_light(light, budget)
    budget -= _sum(shares)
    for own in sorted(heavy, key=lambda own: (standing(own[0]), own[0].order)):
        given = share_budget(own, budget)
        shares += given
        budget -= _sum(given)
    return shares


def _share_among_light(parties: list[list[Sequence]], budget: int) -> list[tuple[Sequence, int]]:
    """Returns the shares of parties that have credit for all their prompts: none waits for what it lacks.

    Half goes to the party that came first, the other half to those with least to compute: prompts in turns
    would all be done as late as the last of them.
    """
    if not parties:
        return []
    first, *others = sorted(parties, key=lambda own: own[0].arrival)
    left = budget - min(_num_left(first), budget if not others else -(-budget // 2))
    shares: list[tuple[Sequence, int]] = []
    for own in sorted(others, key=_num_left):
        given = share_budget(own, left)
        shares += given
        left -= _sum(given)
    return share_budget(first, budget - _sum(shares)) + shares


def _share_in_order(prefilling: list[Sequence], budget: int) -> list[tuple[Sequence, int]]:
    shares: list[tuple[Sequence, int]] = []
    for sequence in prefilling:
        if budget < 1:
            break
        count = min(sequence.remaining, budget)
        shares.append((sequence, count))
        budget -= count
    return shares


def _sum(shares: list[tuple[Sequence, int]]) -> int:
    return sum([count for _, count in shares])


def _num_left(own: list[Sequence]) -> int:
    return sum([sequence.remaining for sequence in own])


def split_runs(unfinished: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """Returns the sequences with a run that a grammar forces, and those with prompts; background is a prompt.

    A run is a part of an answer under way: it gets on in each step, as sequences that decode do, and never
    waits until the prompts of others are done.
    """
    runs = [one for one in unfinished if one.has_run and not is_background(one)]
    if not runs:
        return [], unfinished
    return runs, [one for one in unfinished if is_background(one) or not one.has_run]


def share_among_runs(runs: list[Sequence], budget: int) -> list[tuple[Sequence, int]]:
    """Returns tokens per run, each at least 1 and otherwise together at most `budget`, short ones whole."""
    shares: list[tuple[Sequence, int]] = []
    for num_left, sequence in zip(range(len(runs), 0, -1), sorted(runs, key=_left), strict=True):
        count = min(sequence.remaining, max(1, budget // num_left))
        shares.append((sequence, count))
        budget -= count
    return shares


def _left(sequence: Sequence) -> int:
    return sequence.remaining


def _after_first(sequence: Sequence) -> tuple[int, int, int]:
    return -sequence.priority, sequence.remaining, sequence.arrival
