"""Tokens drawn by every variant of the kernels and by numpy, against the oracle that sorts."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.engine.native.build import targets
from services.worker.engine.native.library import kernels
from services.worker.engine.rank.sequences import SequenceState
from services.worker.engine.sampling import reference
from services.worker.engine.sampling.draws import Draws
from services.worker.engine.sampling.native_draws import NativeDraws
from services.worker.engine.sampling.row_draws import DrawJob, PlainDraws, RowDraws
from services.worker.engine.sampling.sampler import Logits, Sampler
from services.worker.engine.sampling.shares import inverse_of, share
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import NewSequence

KINDS = ["plain", *targets()]

samplings = st.builds(
    EngineSampling,
    temperature=st.sampled_from([1e-320, 1e-6, 0.3, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([0, 0, 1, 3, 40, 600, 2**62]),
    top_p=st.sampled_from([1.0, 0.999999, 0.9, 0.5, 0.05, 1e-300, 5e-324, 0.0]),
    min_p=st.sampled_from([0.0, 0.0, 1e-300, 1e-9, 0.1, 1.0]),
    seed=st.integers(0, 2**63 - 1),
)


def _draws(kind: str) -> RowDraws:
    return PlainDraws() if kind == "plain" else NativeDraws(kernels(kind), 2)


def _rows(seed: int, shape: tuple[int, int], scale: float, grid: float) -> Logits:
    rows = (np.random.default_rng(seed).standard_normal(shape) * 3).astype(np.float32) * np.float32(scale)
    if grid:
        rows = np.round(rows / np.float32(grid)) * np.float32(grid)  # many ties
    return rows


def _jobs(rows: Logits, samplings: list[EngineSampling]) -> list[DrawJob]:
    draws = Draws()
    return [
        DrawJob(row, int(row.argmax()), one, draws.draw_bits(one.seed, 0, 1))
        for row, one in zip(rows, samplings, strict=True)
    ]


def _expected(rows: Logits, samplings: list[EngineSampling]) -> list[int]:
    return [reference.choose(row, one, [0], 1) for row, one in zip(rows, samplings, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(
    some=st.lists(samplings, min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    vocab=st.sampled_from([1, 15, 127, 128, 513, 5000]),
    scale=st.sampled_from([0.0, 0.01, 1.0, 1e30]),
    grid=st.sampled_from([0.0, 0.5, 2.0]),
    masked=st.booleans(),
)
def test_tokens_are_those_of_the_oracle(
    *, kind: str, some: list[EngineSampling], seed: int, vocab: int, scale: float, grid: float, masked: bool
) -> None:
    rows = _rows(seed, (len(some), vocab), scale, grid)
    if masked:
        hidden = np.random.default_rng(seed).random(rows.shape) < 0.5
        hidden[np.arange(len(rows)), rows.argmax(axis=1)] = False
        rows[hidden] = -np.inf
    assert _draws(kind).draw_rows(_jobs(rows, some)) == _expected(rows, some)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_large_vocabulary_are_those_of_the_oracle(kind: str) -> None:
    limits: list[dict[str, float]] = [
        {},
        {"top_p": 0.9},
        {"top_p": 0.999999},
        {"top_k": 50},
        {"top_k": 9000, "top_p": 0.8},
        {"min_p": 1e-5},
        {"min_p": 0.02, "top_k": 40, "top_p": 0.95},
    ]
    some = [
        EngineSampling(temperature=(0.6, 1.0, 1.5)[i % 3], seed=7 * i, **one)  # type: ignore[arg-type]
        for i, one in enumerate(2 * limits)
    ]
    rows = _rows(5, (len(some), 152_064), 1.0, 0.0)
    rows[::3, ::800] += 12  # a few likely tokens
    rows[1] = 0
    rows[4, 7] += 40  # one almost certain token
    assert _draws(kind).draw_rows(_jobs(rows, some)) == _expected(rows, some)


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("temperature", [1e-6, 0.7, 1.0, 100.0])
def test_shares_have_the_same_bits_everywhere_and_are_exponentials(target: str, temperature: float) -> None:
    scores = np.concatenate([_rows(1, (1, 4080), 8.0, 0.0)[0], np.linspace(-90, 0, 4096, dtype=np.float32)])
    scores[3::50] = -np.inf
    peak = scores.max()
    plain, native = share(scores, peak, temperature), np.empty_like(scores)
    kernels(target).shares(
        scores.ctypes.data, peak, inverse_of(temperature), native.ctypes.data, ctypes.c_int64(len(scores))
    )
    assert plain.tobytes() == native.tobytes()
    exponents = (scores - peak) * inverse_of(temperature)
    exact = np.where(exponents < -86, 0, np.exp(exponents.astype(np.float64)))
    np.testing.assert_allclose(plain, exact, rtol=4e-7, atol=0)
    assert plain.max() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_sampler_edits_each_row_in_a_buffer_of_its_own(kind: str) -> None:
    rows = _rows(9, (5, 700), 1.0, 0.0)
    some = [
        EngineSampling(temperature=1, presence_penalty=1.5, seed=1),
        EngineSampling(temperature=0, frequency_penalty=1.0),
        EngineSampling(temperature=1, repetition_penalty=1.7, seed=3, top_k=20),
        EngineSampling(temperature=0.8, seed=4),
        EngineSampling(temperature=2, logit_bias={5: 9.0}, seed=5, top_p=0.9),
    ]
    tokens = [3, 5, 5, 9]
    states = [
        SequenceState(NewSequence(seq_id=i, token_ids=tokens, prompt_len=1, sampling=one))
        for i, one in enumerate(some)
    ]
    found = Sampler(_draws(kind)).sample(rows, states, [4] * 5)
    assert [one.token_id for one in found] == [
        reference.choose(row, one, tokens, 1) for row, one in zip(rows, some, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_whose_weights_overflow_is_refused(kind: str) -> None:
    row = np.zeros(2**22 + 1, np.float32)
    with pytest.raises(ValueError, match="vocab_size=4194305"):
        _draws(kind).draw_rows([DrawJob(row, 0, EngineSampling(), 0)])
    assert _draws(kind).draw_rows([]) == []
