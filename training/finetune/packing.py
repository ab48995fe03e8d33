"""Which chats are trained on, in which packs and order. Pure: the seed decides everything.

The packs of all epochs are known before the first step, and so are the number of steps and the place of each
in the data: to resume needs the number of a step only.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

_OPEN = 64  # packs that a chat may still go into
Pack = tuple[int, ...]  # indexes of chats


def split(count: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Draw the held-out chats; at least one is trained on, and one is held out unless the share is 0.

    Returns:
        Indexes of the chats to train on, and of the held-out ones.
    """
    held_out = 0 if share == 0 or count < 2 else min(count - 1, max(1, round(count * share)))
    drawn = set(random.Random(f"split {seed}").sample(range(count), held_out))
    return [index for index in range(count) if index not in drawn], sorted(drawn)


def pack(indexes: Sequence[int], sizes: Sequence[int], length: int, *, alone: bool = False) -> list[Pack]:
    """Put chats into packs, each into the fullest open pack that has room.

    Args:
        indexes: Chats in the order in which they are taken.
        sizes: Tokens of each chat, by its index; at most `length`.
        length: Tokens of a pack at most.
        alone: Each chat is a pack of its own.
    """
    done, open_packs = list[Pack](), list[tuple[int, list[int]]]()
    for index in indexes:
        size = sizes[index]
        if size > length:
            raise ValueError(f"chat {index} has {size} tokens, and a pack has {length}")
        if alone:
            done.append((index,))
            continue
        fits = [at for at, (used, _) in enumerate(open_packs) if used + size <= length]
        if fits:
            at = max(fits, key=lambda one: open_packs[one][0])
            used, members = open_packs[at]
            members.append(index)
            open_packs[at] = (used + size, members)
            continue
        if len(open_packs) == _OPEN:
            fullest = max(range(_OPEN), key=lambda one: open_packs[one][0])
            done.append(tuple(open_packs.pop(fullest)[1]))
        open_packs.append((size, [index]))
    return [*done, *(tuple(members) for _, members in open_packs)]


@dataclass(frozen=True, slots=True)
class Course:
    """All steps of a training.

    Attributes:
        steps: The packs of each step.
        evaluate_after: Numbers of steps, counted from 1, after which the held-out loss is measured.
        epoch_ends: Number of the last step of each epoch.
    """

    steps: tuple[tuple[Pack, ...], ...]
    evaluate_after: frozenset[int]
    epoch_ends: tuple[int, ...]


def plan_course(
    chats: Sequence[int],
    sizes: Sequence[int],
    *,
    length: int,
    packs: int,
    epochs: int,
    evaluations: int,
    seed: int,
    alone: bool = False,
) -> Course:
    """Plan all steps; each epoch has the chats in another order, in other packs.

    Args:
        chats: Indexes of the chats to train on.
        sizes: Tokens of each chat, by its index.
        length: Tokens of a pack at most.
        packs: Packs of a step; the last step of an epoch may have fewer.
        evaluations: Per epoch, the last one at its end.
        alone: Each chat is a pack of its own.
    """
    steps, evaluate_after, ends = list[tuple[Pack, ...]](), set[int](), list[int]()
    for epoch in range(epochs):
        draw = random.Random(f"epoch {seed} {epoch}")
        order = list(chats)
        draw.shuffle(order)
        packed = pack(order, sizes, length, alone=alone)
        draw.shuffle(packed)
        begin = len(steps)
        steps += [tuple(packed[at : at + packs]) for at in range(0, len(packed), packs)]
        count = len(steps) - begin
        evaluate_after |= {begin + ceil(count * part / evaluations) for part in range(1, evaluations + 1)}
        ends.append(len(steps))
    return Course(tuple(steps), frozenset(evaluate_after), tuple(ends))
