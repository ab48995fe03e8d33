"""What the draft engine has computed, by random sequences of right and wrong guesses.

The engine computes hashes through the block tables, so a block that is used twice, a token that is left out,
or a wrong guess that stays gives another guess than the tokens say.
"""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.domain.speculation.draft_cache import DraftCache
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import NewSequence, ScheduledChunk, StepPlan
from tests.kits.engine.hash_engine import VOCAB, HashEngine, mix, sample

CONTEXT = 120


def next_token(tokens: list[int]) -> int:
    state = 0
    for token_id in tokens:
        state = mix(state, token_id)
    return sample(state, 0).token_id


class Drafting:
    """One draft engine, and the sequences of a target."""

    def __init__(self, num_blocks: int) -> None:
        self.cache = DraftCache(num_blocks, CONTEXT, VOCAB)
        self.engine = HashEngine(num_blocks)
        self.tokens: dict[int, list[int]] = {}
        self.guesses = self.refused = 0
        self._admit: list[NewSequence] = []

    def begin(self, key: int, prompt: list[int]) -> bool:
        draft_id = self.cache.open(key, len(prompt))
        if draft_id is None:
            self.refused += 1
            return False
        self.tokens[key] = prompt
        self._admit.append(
            NewSequence(
                seq_id=draft_id, token_ids=prompt.copy(), prompt_len=len(prompt), sampling=EngineSampling()
            )
        )
        return True

    def compute(self, chunk: ScheduledChunk) -> list[int]:
        release = self.cache.take_released()
        admit, self._admit = self._admit, []
        released = [seq_id for seq_id in release if seq_id not in {new.seq_id for new in admit}]
        admit = [new for new in admit if new.seq_id not in release]
        plan = StepPlan(step_id=1, release=released, admit=admit, chunks=[chunk])
        self.cache.check_invariants()
        return [one.token_id for one in self.engine.compute(plan).sampled]

    def read(self, key: int, count: int) -> bool:
        chunk = self.cache.extend(key, self.tokens[key], count, sample=False)
        return chunk is not None and self.compute(chunk) == []

    def guess(self, key: int, count: int) -> list[int]:
        """A round of one sequence, each guess checked; fewer if it does not fit."""
        tokens, found = self.tokens[key], list[int]()
        missing = self.cache.num_missing(key, tokens)
        chunk = self.cache.extend(key, tokens, missing, sample=True)
        while chunk is not None:
            (token_id,) = self.compute(chunk)
            assert token_id == next_token(tokens + found)
            found.append(token_id)
            self.cache.note_guess(key, token_id)
            chunk = self.cache.follow(key) if len(found) < count else None
        self.guesses += len(found)
        if not found:
            self.refused += 1
            self.cache.drop(key)
            del self.tokens[key]
        return found


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), num_blocks=st.integers(2, 30), right=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_guesses_are_those_of_the_tokens_and_blocks_are_used_once(
    seed: int, num_blocks: int, right: float
) -> None:
    chance, drafting, last = random.Random(seed), Drafting(num_blocks), 0
    cache = drafting.cache
    for _ in range(60):
        if len(drafting.tokens) < 3:
            last += 1
            begun = drafting.begin(last, [chance.randrange(VOCAB) for _ in range(chance.randint(1, 50))])
            if not begun and not drafting.tokens:
                continue
        key = chance.choice(list(drafting.tokens))
        tokens = drafting.tokens[key]
        missing = cache.settle(key, tokens)
        assert 1 <= missing <= len(tokens)
        if missing > 1 and chance.random() < 0.3 and not drafting.read(key, chance.randint(1, missing - 1)):
            cache.drop(key)
            del drafting.tokens[key]
            continue
        found = drafting.guess(key, chance.randint(1, 5))
        if not found:
            continue
        for token_id in found:  # what the target makes of them; a token is left out if it did not check any
            if chance.random() >= right:
                tokens.append(chance.randrange(VOCAB))
                break
            tokens.append(token_id)
        else:
            tokens += [chance.randrange(VOCAB) for _ in range(chance.randint(0, 3))]
        if chance.random() < 0.05:
            kept = [one for one in drafting.tokens if chance.random() < 0.5]
            cache.keep(kept)
            drafting.tokens = {one: drafting.tokens[one] for one in kept}
        cache.check_invariants()
    assert drafting.guesses + drafting.refused > 5
    cache.keep(())
    assert cache.num_free == num_blocks
    cache.check_invariants()


def test_right_guesses_are_not_computed_again() -> None:
    drafting = Drafting(8)
    drafting.begin(1, [1, 2, 3])
    cache, tokens = drafting.cache, drafting.tokens[1]
    assert cache.settle(1, tokens) == 3
    found = drafting.guess(1, 3)
    tokens += [*found, 7]
    assert cache.settle(1, tokens) == 2  # the newest guess was only sampled
    assert drafting.engine.num_computed == 5
    again = drafting.guess(1, 2)
    assert drafting.engine.num_computed == 8
    tokens.append(again[0] + 1)  # wrong
    assert cache.settle(1, tokens) == 1


def test_a_token_that_the_draft_model_does_not_know_is_refused() -> None:
    cache = DraftCache(8, CONTEXT, VOCAB)
    assert cache.open(1, 2) == 1
    assert cache.settle(1, [3, VOCAB]) == 2
    assert cache.extend(1, [3, VOCAB], 2, sample=True) is None
    cache.drop(1)
    assert (cache.num_free, cache.take_released()) == (8, [1])


def test_a_sequence_without_room_for_its_tokens_is_not_taken_in() -> None:
    cache = DraftCache(4, CONTEXT, VOCAB)
    assert cache.open(1, 63) == 1
    assert cache.open(2, 1) is None
    cache.drop(1)
    assert cache.open(2, 64) is None
    assert cache.open(2, 1) == 2
    assert DraftCache(100, CONTEXT, VOCAB).open(1, CONTEXT) is None
    assert 2 in cache
    assert 1 not in cache
