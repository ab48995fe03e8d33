"""The sampler against its slow reference, the reference against plain Python, and edge cases of both."""

import math
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.engine.rank.sequences import SequenceState
from services.worker.engine.sampling import reference
from services.worker.engine.sampling.draws import Draws
from services.worker.engine.sampling.sampler import Logits, Sampler
from services.worker.engine.sampling.top_k_top_p import TopKTopPSampler, share_of
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import NewSequence, Sampled

VOCAB = 24

samplings = st.builds(
    EngineSampling,
    temperature=st.sampled_from([0.0, 1e-320, 1e-6, 0.3, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([0, 0, 1, 3, 40, 600, 10**9]),
    top_p=st.sampled_from([1.0, 0.999999, 0.9, 0.5, 0.05, 1e-300, 0.0]),
    min_p=st.sampled_from([0.0, 0.0, 1e-300, 1e-9, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7, 10.0, 1e-310]),
    presence_penalty=st.sampled_from([0.0, 0.8, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -1.0]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB + 3), st.floats(-100, 100), max_size=3),
    seed=st.integers(0, 2**63 - 1),
    logprobs=st.sampled_from([-1, -1, 0, 5, 20]),
)
# parameters for which float64 rounding in plain Python does not change the token
mild_samplings = st.builds(
    EngineSampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 100]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.8, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -1.0]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB + 3), st.sampled_from([-100.0, -0.7, 1.3]), max_size=3),
    seed=st.integers(0, 2**63 - 1),
)
token_lists = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20)
sequence_lists = st.lists(st.tuples(samplings, token_lists), min_size=1, max_size=4)


def _state(
    sampling: EngineSampling, tokens: Sequence[int], prompt_len: int = 1, choice: int = 0
) -> SequenceState:
    return SequenceState(
        NewSequence(seq_id=1, token_ids=list(tokens), prompt_len=prompt_len, sampling=sampling, choice=choice)
    )


def _logits(rows: int, seed: int, vocab: int = VOCAB) -> Logits:
    drawn: Logits = (3 * np.random.default_rng(seed).standard_normal((rows, vocab))).astype(np.float32)
    return drawn


def _sample(logits: Logits, states: Sequence[SequenceState], sampler: Sampler | None = None) -> list[Sampled]:
    return (sampler or Sampler()).sample(logits, states, [state.tokens.size for state in states])


def _expect_reference(found: Sampled, logits: Logits, state: SequenceState) -> None:
    sampling, tokens = state.sampling, state.tokens.view.tolist()
    assert found.error == ""
    assert found.token_id == reference.choose(logits, sampling, tokens, state.prompt_len, state.choice)
    if sampling.logprobs < 0:
        assert (found.logprob, found.top) == (0.0, [])
        return
    expected = reference.log_probabilities(logits)
    assert found.logprob == pytest.approx(expected[found.token_id], rel=1e-6, abs=1e-6)
    top = reference.alternatives(logits, sampling.logprobs)
    assert [item.token_id for item in found.top] == [item.token_id for item in top]
    assert [item.logprob for item in found.top] == pytest.approx(
        [item.logprob for item in top], rel=1e-6, abs=1e-6
    )


def _plain(logits: Sequence[float], state: SequenceState) -> int:
    """Samples one row in plain Python, in the documented order of operations."""
    s, tokens = state.sampling, [int(token) for token in state.tokens.view]
    output = tokens[state.prompt_len :]
    scores = [float(value) for value in logits]
    for token, bias in s.logit_bias.items():
        if token < len(scores):
            scores[token] += bias
    for token in set(tokens):
        factor = s.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token in set(output):
        scores[token] -= s.frequency_penalty * output.count(token) + s.presence_penalty
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if s.temperature == 0:
        return order[0]
    best = scores[order[0]]
    weights = {token: math.exp((scores[token] - best) / s.temperature) for token in order}
    order = [token for token in order if weights[token] >= s.min_p]
    order = order[: s.top_k or None]
    total, reached = sum(weights[token] for token in order), 0.0
    kept: list[int] = []
    for token in order:
        if kept and reached >= s.top_p * total:
            break
        kept.append(token)
        reached += weights[token]
    uniform = Draws().draw_bits(s.seed, state.choice, len(tokens)) / 2**53
    target, reached = uniform * sum(weights[token] for token in kept), 0.0
    for token in sorted(kept):
        reached += weights[token]
        if reached > target:
            return token
    return max(kept)


# The examples are fixed: about one draw in a million is so near to an edge that fp32 and float64 differ.
@settings(max_examples=300, deadline=None, derandomize=True)
@given(mild_samplings, token_lists, st.integers(0, 1000), st.integers(0, 3))
def test_the_reference_equals_plain_python(
    sampling: EngineSampling, tokens: list[int], seed: int, choice: int
) -> None:
    (logits,) = _logits(1, seed)
    prompt_len = 1 + len(tokens) // 2
    state = _state(sampling, tokens, prompt_len, choice)
    assert reference.choose(logits, sampling, tokens, prompt_len, choice) == _plain(logits.tolist(), state)


@settings(max_examples=200, deadline=None)
@given(sequence_lists, st.integers(0, 1000))
def test_equals_the_reference(rows: list[tuple[EngineSampling, list[int]]], seed: int) -> None:
    logits = _logits(len(rows), seed)
    states = [_state(sampling, tokens, prompt_len=1 + len(tokens) // 2) for sampling, tokens in rows]
    for found, row, state in zip(_sample(logits, states), logits, states, strict=True):
        _expect_reference(found, row, state)


@settings(max_examples=150, deadline=None)
@given(
    sampling=samplings,
    tokens=token_lists,
    seed=st.integers(0, 1000),
    vocab=st.sampled_from([511, 512, 513, 5000]),
    scale=st.sampled_from([0.0, 0.01, 1.0, 1e30]),
    grid=st.sampled_from([0.0, 0.5, 2.0]),
    masked=st.booleans(),
)
def test_equals_the_reference_where_it_does_not_sort(
    *,
    sampling: EngineSampling,
    tokens: list[int],
    seed: int,
    vocab: int,
    scale: float,
    grid: float,
    masked: bool,
) -> None:
    (logits,) = _logits(1, seed, vocab) * np.float32(scale)
    if grid:
        logits = np.round(logits / np.float32(grid)) * np.float32(grid)  # many ties
    if masked:
        hidden = np.random.default_rng(seed).random(vocab) < 0.5
        hidden[logits.argmax()] = False
        logits[hidden] = -np.inf
    state = _state(sampling, tokens, prompt_len=1 + len(tokens) // 2)
    _expect_reference(_sample(logits[None], [state])[0], logits, state)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "limits", [{}, {"top_p": 0.9}, {"top_p": 0.999999}, {"top_k": 50}, {"top_k": 9000}, {"min_p": 1e-5}]
)
def test_equals_the_reference_on_a_real_vocabulary(temperature: float, limits: dict[str, float]) -> None:
    logits = _logits(4, 5, 32_000)
    logits[1, ::800] += 12  # a few likely tokens
    logits[2] = 0
    logits[3, 7] += 40  # one almost certain token
    states = [
        _state(EngineSampling(temperature=temperature, seed=seed, logprobs=3, **limits), [seed])  # type: ignore[arg-type]
        for seed in range(4)
    ]
    for found, row, state in zip(_sample(logits, states), logits, states, strict=True):
        _expect_reference(found, row, state)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(samplings, token_lists), min_size=2, max_size=6), st.integers(0, 1000))
def test_the_rest_of_the_batch_makes_no_difference(
    rows: list[tuple[EngineSampling, list[int]]], seed: int
) -> None:
    logits = _logits(len(rows), seed, 600)
    kept = logits.copy()
    states = [_state(sampling, tokens) for sampling, tokens in rows]
    sampler = Sampler()
    together = _sample(logits, states, sampler)
    backwards = _sample(logits[::-1], states[::-1], sampler)[::-1]
    alone = [_sample(logits[i : i + 1], states[i : i + 1])[0] for i in range(len(rows))]
    assert together == backwards == alone
    assert (logits == kept).all()


@settings(max_examples=30, deadline=None)
@given(samplings, token_lists, st.integers(0, 1000), st.integers(0, 40))
def test_a_resumed_sequence_goes_on_the_same(
    sampling: EngineSampling, prompt: list[int], seed: int, cut: int
) -> None:
    logits = _logits(40, seed)
    state, sampler = _state(sampling, prompt, len(prompt)), Sampler()
    for step, row in enumerate(logits):
        if step == cut:  # as on another rank, which knows the tokens only
            state, sampler = _state(sampling, state.tokens.view.tolist(), len(prompt)), Sampler()
        (found,) = _sample(row[None], [state], sampler)
        _expect_reference(found, row, state)
        state.tokens.extend([found.token_id])
    # a position that is sampled again does not count its tokens twice
    row, end = logits[cut - 1], len(prompt) + 3
    shorter = _state(sampling, state.tokens.view[:end].tolist(), len(prompt))
    (again,) = sampler.sample(row[None], [state], [end])
    _expect_reference(again, row, shorter)


def test_a_sequence_that_is_gone_is_forgotten() -> None:
    sampler, state = Sampler(), _state(EngineSampling(temperature=0, presence_penalty=1), [1, 2])
    _sample(_logits(1, 1), [state], sampler)
    gone = weakref.ref(state)
    del state
    assert gone() is None


def test_penalties_of_tokens_that_are_not_there_are_a_bug() -> None:
    state = _state(EngineSampling(presence_penalty=1), [1, 2])
    with pytest.raises(ValueError, match="sequence 1: penalties of 5 tokens"):
        Sampler().sample(_logits(1, 1), [state], [5])


def test_a_sampler_follows_the_size_of_the_vocabulary() -> None:
    sampler, state = (
        Sampler(),
        _state(EngineSampling(temperature=0, presence_penalty=1, logit_bias={31: 100.0}), [1, 2]),
    )
    for vocab in (VOCAB, 40, VOCAB):
        logits = _logits(1, 1, vocab)
        (found,) = _sample(logits, [state], sampler)
        _expect_reference(found, logits[0], state)
    with pytest.raises(ValueError, match="vocab_size=4194305"):
        TopKTopPSampler(2**22 + 1)


def test_no_rows_are_no_tokens() -> None:
    assert Sampler().sample(_logits(0, 1), [], []) == []


def _draw_many(sampling: EngineSampling, logits: Logits, count: int) -> list[int]:
    """Samples at `count` positions with independent draws."""
    states = [_state(sampling, [0])] * count
    return [s.token_id for s in Sampler().sample(np.repeat(logits, count, 0), states, range(1, count + 1))]


def test_draws_follow_the_distribution() -> None:
    logits, count = _logits(1, 3) / np.float32(2), 20_000
    drawn = np.bincount(_draw_many(EngineSampling(seed=11), logits, count), minlength=VOCAB)
    expected = np.exp(logits[0].astype(np.float64))
    expected *= count / expected.sum()
    chi_square = float(((drawn - expected) ** 2 / expected).sum())
    # 57.1 is the 99.99 % quantile for 23 degrees of freedom; the seed is fixed
    assert chi_square < 57.1


def test_choices_of_one_seed_are_independent() -> None:
    logits, count = np.zeros((1, 4), np.float32), 4000
    pairs = np.zeros((4, 4))
    for position in range(count):
        states = [_state(EngineSampling(seed=7), [0], choice=choice) for choice in (0, 1)]
        first, second = Sampler().sample(np.repeat(logits, 2, 0), states, [position + 1] * 2)
        pairs[first.token_id, second.token_id] += 1
    # 99.99 % quantile for 15 degrees of freedom
    assert float(((pairs - count / 16) ** 2 / (count / 16)).sum()) < 44.3


def test_draws_fill_their_range_evenly() -> None:
    draws = Draws()
    drawn = np.array([draws.draw_bits(5, 0, position) for position in range(20_000)])
    assert drawn.min() >= 0
    assert drawn.max() < 2**53
    counts = np.histogram(drawn, bins=50, range=(0, 2**53))[0]
    assert float(((counts - 400) ** 2 / 400).sum()) < 98  # over the 99.99 % quantile, 49 degrees of freedom


def test_the_draw_depends_on_seed_choice_and_position_and_never_changes() -> None:
    draws = Draws()
    keys = [(1, 0, 5), (2, 0, 5), (1, 1, 5), (1, 0, 6), (2**63 - 1, 3, 10**6)]
    first = [draws.draw_bits(*key) for key in keys]
    assert len(set(first)) == len(keys)
    assert [draws.draw_bits(*key) for key in reversed(keys)] == first[::-1]
    # golden: a generation may be resumed by a newer version of this code
    assert first[0] == int(np.random.Philox(key=[1, 0], counter=[5, 0, 0, 0]).random_raw()) >> 11
    assert first[0] / 2**53 == 0.9719207784869555


@pytest.mark.parametrize("vocab", [1, 2, 512, 1000])
def test_of_equal_tokens_the_draw_is_the_share_of_the_ids(vocab: int) -> None:
    logits, draws = np.zeros((1, vocab), np.float32), Draws()
    assert _draw_many(EngineSampling(seed=3), logits, 100) == [
        draws.draw_bits(3, 0, position) * vocab >> 53 for position in range(1, 101)
    ]


@pytest.mark.parametrize("sampling", [EngineSampling(), EngineSampling(top_p=0.99), EngineSampling(top_k=3)])
@pytest.mark.parametrize(("vocab", "first", "second"), [(5, 1, 3), (2000, 3, 700)])
def test_a_draw_at_an_edge_goes_to_the_next_possible_token(
    sampling: EngineSampling, vocab: int, first: int, second: int
) -> None:
    scores = np.full(vocab, -np.inf, np.float32)
    scores[[first, second]] = 0
    nucleus = TopKTopPSampler(vocab)
    drawn = [nucleus.draw(scores, first, sampling, bits) for bits in (0, 2**52 - 1, 2**52, 2**53 - 1)]
    assert drawn == [first, first, second, second]


def test_limits_leave_out_the_unlikely() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32))
    assert set(_draw_many(EngineSampling(top_k=2), logits, 300)) == {0, 1}
    assert set(_draw_many(EngineSampling(top_p=0.75), logits, 300)) == {0, 1}
    assert set(_draw_many(EngineSampling(min_p=0.2), logits, 300)) == {0, 1, 2}
    assert set(_draw_many(EngineSampling(top_p=0.0), logits, 50)) == {0}
    assert set(_draw_many(EngineSampling(min_p=1.0, temperature=2.0), logits, 50)) == {0}


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.25, 1), (math.nextafter(0.25, 1), 2), (0.5, 2), (0.75, 3), (0.76, 4), (1.0, 4)]
)
@pytest.mark.parametrize("top_k", [0, 4])  # two code paths
def test_top_p_is_exact_at_its_edges(top_p: float, kept: int, top_k: int) -> None:
    logits = np.zeros((1, 4), np.float32) if top_k == 0 else np.array([[0, 0, 0, 0, -1]], np.float32)
    assert set(_draw_many(EngineSampling(top_p=top_p, top_k=top_k), logits, 200)) == set(range(kept))


def test_a_share_is_rounded_up_and_never_nothing() -> None:
    assert share_of(2**40, 0.5) == 2**39
    assert share_of(2**40 + 1, 0.5) == 2**39 + 1
    assert share_of(2**40, 5e-324) == share_of(2**40, 0.0) == 1
    assert share_of(2**60 + 1, math.nextafter(1, 0)) == 2**60 + 1 - 2**7


@pytest.mark.parametrize("temperature", [1e-6, 1.0, 100.0])
def test_top_k_of_one_is_the_likeliest_at_any_temperature(temperature: float) -> None:
    near = np.nextafter(np.float32(5), np.float32(6))  # at a high temperature it has the same weight as 5
    logits = np.full((1, 700), 5, np.float32)
    logits[0, 650] = near
    assert set(_draw_many(EngineSampling(top_k=1, temperature=temperature), logits, 50)) == {650}
    assert set(_draw_many(EngineSampling(top_p=0.0, temperature=temperature), logits, 50)) == {650}


def test_ties_go_to_the_lower_token() -> None:
    logits = np.zeros((1, 5), np.float32)
    assert _draw_many(EngineSampling(temperature=0), logits, 1) == [0]
    assert set(_draw_many(EngineSampling(top_k=2), logits, 100)) == {0, 1}


def test_log_probabilities_are_of_the_raw_logits() -> None:
    logits = _logits(1, 9)
    sampling = EngineSampling(temperature=0, logprobs=3, logit_bias={7: 100.0})
    (found,) = Sampler().sample(logits, [_state(sampling, [1])], [1])
    expected = logits[0] - np.log(np.exp(logits[0].astype(np.float64)).sum())
    best = np.argsort(-expected)[:3]
    assert found.token_id == 7
    assert found.logprob == pytest.approx(expected[7])
    assert [item.token_id for item in found.top] == best.tolist()
    assert [item.logprob for item in found.top] == pytest.approx(expected[best].tolist())


def test_log_probabilities_only_when_asked() -> None:
    states = [_state(EngineSampling(temperature=0, logprobs=count), [1]) for count in (-1, 0, 20)]
    found = Sampler().sample(_logits(3, 2), states, [1, 1, 1])
    assert found[0] == Sampled(seq_id=1, token_id=found[0].token_id)
    assert found[1].logprob < 0
    assert found[1].top == []
    assert len(found[2].top) == 20


def test_no_alternative_is_impossible() -> None:
    logits = np.array([[-np.inf, 1.0, -np.inf, 0.0]], np.float32)
    sampling = EngineSampling(temperature=0, logprobs=4, logit_bias={0: 100.0})
    (found,) = Sampler().sample(logits, [_state(sampling, [1])], [1])
    assert found.token_id == 1
    assert [item.token_id for item in found.top] == [1, 3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_extreme_penalty_still_chooses_the_likeliest(temperature: float) -> None:
    logits = np.array([[1.0, -1.0, 3.0, 2.0]], np.float32)
    sampling = EngineSampling(temperature=temperature, repetition_penalty=1e-310)  # 3 / 1e-310 overflows
    (found,) = Sampler().sample(logits, [_state(sampling, [2])], [1])
    assert found.token_id == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_of_every_token_leave_one_to_choose(temperature: float) -> None:
    logits = np.full((1, 4), -3e38, np.float32)
    sampling = EngineSampling(temperature=temperature, repetition_penalty=10)  # all of them overflow
    (found,) = Sampler().sample(logits, [_state(sampling, [0, 1, 2, 3])], [4])
    assert found.error == ""
    assert 0 <= found.token_id < 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_end_their_sequence_only(bad: float, temperature: float) -> None:
    logits = _logits(3, 1)
    states = [_state(EngineSampling(temperature=temperature, presence_penalty=1, logprobs=2), [1])] * 3
    expected = _sample(logits, states)
    logits[1, 4] = bad
    found = _sample(logits, states)
    assert "no finite numbers" in found[1].error
    assert [found[0], found[2]] == [expected[0], expected[2]]


def test_a_row_without_any_possible_token_ends_its_sequence() -> None:
    logits = np.full((1, VOCAB), -np.inf, np.float32)
    (found,) = _sample(logits, [_state(EngineSampling(), [1])])
    assert found.error
