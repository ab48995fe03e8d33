"""Packs, the split and the course: nothing is lost, nothing is too long, and the seed decides all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.finetune.packing import pack, plan_course, split

SIZES = st.lists(st.integers(1, 100), min_size=1, max_size=300)


@given(SIZES, st.booleans())
def test_each_chat_is_in_one_pack_that_is_not_too_long(sizes: list[int], alone: bool) -> None:
    packs = pack(range(len(sizes)), sizes, 100, alone=alone)
    assert sorted(index for one in packs for index in one) == list(range(len(sizes)))
    assert all(sum(sizes[index] for index in one) <= 100 for one in packs)
    if alone:
        assert len(packs) == len(sizes)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=60))
def test_at_most_one_pack_is_less_than_half_full(sizes: list[int]) -> None:
    packs = pack(range(len(sizes)), sizes, 100)
    assert sum(sum(sizes[index] for index in one) <= 50 for one in packs) <= 1


def test_a_chat_that_is_longer_than_a_pack_is_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="chat 1 has 11 tokens, and a pack has 10"):
        pack([0, 1], [5, 11], 10)


@given(st.integers(1, 500), st.floats(0, 0.9), st.integers(0, 9))
def test_the_split_leaves_some_to_train_on(count: int, share: float, seed: int) -> None:
    trained, held_out = split(count, share, seed)
    assert sorted([*trained, *held_out]) == list(range(count))
    assert trained
    assert bool(held_out) == (share > 0 and count > 1)
    assert split(count, share, seed) == (trained, held_out)


def test_the_seed_decides_the_split() -> None:
    assert split(200, 0.1, 0) != split(200, 0.1, 1)
    assert len(split(200, 0.1, 0)[1]) == 20


def course(**changed: int) -> object:
    options = {"length": 100, "packs": 2, "epochs": 3, "evaluations": 2, "seed": 0} | changed
    return plan_course(range(40), [30] * 40, **options)  # type: ignore[arg-type]


def test_every_epoch_has_all_chats_in_another_order() -> None:
    made = plan_course(range(40), [30] * 40, length=100, packs=2, epochs=3, evaluations=2, seed=0)
    assert made.epoch_ends == (7, 14, 21)
    assert made.evaluate_after == {4, 7, 11, 14, 18, 21}
    epochs = [made.steps[end - 7 : end] for end in made.epoch_ends]
    for steps in epochs:
        assert sorted(index for step in steps for one in step for index in one) == list(range(40))
        assert [len(step) for step in steps] == [2] * 7
    assert len(set(epochs)) == 3


def test_the_seed_decides_the_course() -> None:
    assert course() == course()
    assert course(seed=1) != course()
