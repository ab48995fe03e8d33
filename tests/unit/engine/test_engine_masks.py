"""Masks of grammars, `min_tokens` and stop tokens in the sampler, against its slow reference."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.engine.rank.sequences import SequenceState
from services.worker.engine.sampling import reference
from services.worker.engine.sampling.sampler import Logits, Sampler
from services.worker.engine.sampling.score_edits import only_token
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import NewSequence

samplings = st.builds(
    EngineSampling,
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 3, 600]),
    top_p=st.sampled_from([1.0, 0.9, 0.05]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -1.0]),
    logit_bias=st.dictionaries(st.integers(0, 26), st.sampled_from([-100.0, 100.0]), max_size=3),
    seed=st.integers(0, 2**63 - 1),
    logprobs=st.sampled_from([-1, 2]),
    min_tokens=st.sampled_from([0, 0, 2, 100]),
    stop_token_ids=st.lists(st.integers(0, 30), max_size=3),
    ignore_eos=st.booleans(),
)


def state_of(sampling: EngineSampling, tokens: list[int], prompt_len: int = 1) -> SequenceState:
    return SequenceState(
        NewSequence(seq_id=1, token_ids=tokens, prompt_len=prompt_len, sampling=sampling, eos_ids=[0, 9])
    )


def mask_of(allowed: set[int], num_bytes: int) -> bytes:
    bits = bytearray(num_bytes)
    for token_id in allowed:
        bits[token_id // 8] |= 1 << token_id % 8
    return bytes(bits)


@settings(max_examples=250, deadline=None)
@given(
    sampling=samplings,
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([23, 24, 513]),
    share=st.sampled_from([0.0, 0.05, 0.5, 0.99, None]),
    ruled_out=st.booleans(),
)
def test_equals_the_reference_and_never_takes_a_masked_token(
    *, sampling: EngineSampling, seed: int, vocab: int, share: float | None, ruled_out: bool
) -> None:
    chance = random.Random(seed)
    logits: Logits = (3 * np.random.default_rng(seed).standard_normal((1, vocab))).astype(np.float32)
    if ruled_out:  # by the model itself
        logits[0, [chance.randrange(vocab) for _ in range(vocab // 3)]] = -np.inf
        logits[0, 0] = 1
    tokens = [chance.randrange(vocab) for _ in range(chance.randint(2, 9))]
    state, allowed, mask = state_of(sampling, tokens), None, b""
    if share is not None:
        some = [i for i in range(vocab) if logits[0, i] > -np.inf]
        allowed = {chance.choice(some)} | {i for i in range(vocab) if chance.random() < share}
        mask = mask_of(allowed, chance.choice([max(allowed) // 8 + 1, -(-vocab // 8), vocab]))
    (found,) = Sampler().sample(logits, [state], [len(tokens)], [mask])
    end_ids = state.end_ids.tolist()
    assert found.error == ""
    assert allowed is None or found.token_id in allowed
    assert found.token_id == reference.choose(
        logits[0], sampling, tokens, 1, allowed=allowed, end_ids=end_ids
    )
    if sampling.logprobs >= 0:
        raw = reference.log_probabilities(logits[0])
        assert found.logprob == pytest.approx(raw[found.token_id], rel=1e-5, abs=1e-5)
        assert [one.token_id for one in found.top] == [
            one.token_id for one in reference.alternatives(logits[0], 2)
        ]


def test_each_row_has_its_own_mask() -> None:
    logits = np.zeros((3, 20), np.float32)
    states = [state_of(EngineSampling(seed=seed), [1]) for seed in range(3)]
    masks = [mask_of({3, 19}, 3), b"", mask_of({7}, 1)]
    for end in range(1, 200):
        first, _, third = Sampler().sample(logits, states, [end] * 3, masks)
        assert first.token_id in {3, 19}
        assert third.token_id == 7


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ends_wait_for_min_tokens_unless_nothing_else_may_come(temperature: float) -> None:
    logits = np.zeros((1, 12), np.float32)
    logits[0, [0, 5, 9]] = 50  # by far the likeliest
    sampling = EngineSampling(temperature=temperature, min_tokens=3, stop_token_ids=[5, 400])
    taken: list[int] = []
    for _ in range(4):
        state = state_of(sampling, [1, *taken])
        (found,) = Sampler().sample(logits, [state], [1 + len(taken)])
        taken.append(found.token_id)
    assert not {0, 5, 9} & set(taken[:3])
    assert taken[3] in {0, 5, 9}
    (found,) = Sampler().sample(logits, [state_of(sampling, [1])], [1], [mask_of({0, 5}, 2)])
    assert found.token_id in {0, 5}
    # the end-of-sequence tokens end nothing that ignores them, so they need not wait
    (found,) = Sampler().sample(
        logits, [state_of(EngineSampling(temperature=0, min_tokens=3, ignore_eos=True), [1])], [1]
    )
    assert found.token_id == 0


def test_a_mask_that_allows_nothing_ends_its_sequence() -> None:
    logits = np.zeros((2, 12), np.float32)
    states = [state_of(EngineSampling(temperature=0), [1])] * 2
    first, second = Sampler().sample(logits, states, [1, 1], [b"\0\0", b""])
    assert "neither the grammar nor the model" in first.error
    assert (second.error, second.token_id) == ("", 0)


def test_the_only_token_of_a_mask_needs_no_possible_logit() -> None:
    logits = np.array([[0.0, -math.inf]], np.float32)
    (found,) = Sampler().sample(logits, [state_of(EngineSampling(), [1])], [1], [mask_of({1}, 1)])
    assert (found.token_id, found.error) == (1, "")
    assert [only_token(mask_of({i}, 9)) for i in range(72)] == [*range(72)]
    assert [only_token(mask_of(ids, 3)) for ids in ({0, 1}, {0, 23}, set[int]())] == [-1, -1, -1]
