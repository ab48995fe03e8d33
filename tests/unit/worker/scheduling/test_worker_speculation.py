"""Guesses by lookup, and the budget that switches them."""

import random

from services.worker.domain.speculation import prompt_lookup
from services.worker.domain.speculation.draft_budget import EARNED, START, DraftBudget, StepCosts
from services.worker.domain.speculation.prompt_lookup import MAX_ENTRIES, MAX_NEW, PromptLookup


def slow_lookup(tokens: list[int], count: int) -> list[int]:
    """The tokens after the last earlier place of the newest three."""
    for at in range(len(tokens) - 1, 2, -1):
        if tokens[at - 3 : at] == tokens[-3:]:
            made = list(tokens)
            while len(made) < len(tokens) + count:
                made.append(made[at + len(made) - len(tokens)])
            return made[len(tokens) :]
    return []


def test_the_index_finds_what_a_search_finds() -> None:
    chance = random.Random(3)
    lookup, tokens, found = PromptLookup(), [chance.randint(0, 3) for _ in range(20)], 0
    for _ in range(400):
        count = chance.randint(1, 9)
        drafts = lookup.propose(tokens, count)
        assert drafts == slow_lookup(tokens, count)
        found += bool(drafts)
        tokens += [chance.randint(0, 3) for _ in range(chance.randint(1, 4))]
    assert found > 300


def test_a_call_adds_a_bounded_part_of_a_long_prompt() -> None:
    lookup, tokens = PromptLookup(), list(range(3 * MAX_NEW))
    lookup.propose(tokens, 4)
    assert lookup.num_entries <= MAX_NEW
    for _ in range(3):
        lookup.propose(tokens, 4)
    assert lookup.num_entries == len(tokens) - 3


def test_the_index_forgets_its_oldest_entries() -> None:
    lookup, tokens = PromptLookup(), list(range(MAX_ENTRIES + 1000))
    for _ in range(len(tokens) // MAX_NEW + 1):
        lookup.propose(tokens, 1)
    assert lookup.num_entries == MAX_ENTRIES
    assert lookup.propose([*tokens, 0, 1, 2], 1) == []
    assert lookup.propose([*tokens, 0, 1, 2, 5000, 5001, 5002], 2) == [5003, 5004]
    assert prompt_lookup.NGRAM == 3


def test_wrong_guesses_cost_half_a_step_and_one_in_a_hundred() -> None:
    budget, spent, tokens, extra = DraftBudget(8), 0.0, 2000, 0.25
    for _ in range(tokens):
        if drafted := budget.allowed(extra):
            budget.book_drafts(drafted, 0, -extra * drafted)
            spent += extra * drafted
        else:
            budget.book_plain()
    assert 0 < spent <= START + EARNED * tokens


def test_right_guesses_go_on_and_get_longer() -> None:
    budget, lengths = DraftBudget(8), list[int]()
    for _ in range(4):
        lengths.append(budget.allowed(0.2))
        budget.book_drafts(lengths[-1], lengths[-1], 0.8 * lengths[-1])
    assert lengths == [2, 4, 8, 8]
    budget.book_drafts(8, 2, 2 - 1.6)
    assert budget.allowed(0.2) == 3


def test_the_price_of_guesses_is_what_steps_with_some_took_longer() -> None:
    costs = StepCosts(8)
    for _ in range(5):
        costs.book_plain(1, 0.010)
    assert abs(costs.book_drafts(1, 4, 0.014, 0.001) - 0.5) < 1e-9
    assert abs(costs.price(1) - 0.5 / 4) < 1e-9
    assert costs.book_drafts(1, 4, 0.010, 5.0) <= 1.0  # a pause has other reasons
    assert costs.price(2) == costs.price(20)  # what was not measured
