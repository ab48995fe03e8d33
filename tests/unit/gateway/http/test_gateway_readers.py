"""Answers that are cut off for slow readers, and the size that a call may ask for, without a connection."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.admission.caller import new_caller
from services.gateway.answering.answer_cost import check_cost
from services.gateway.answering.events.slow_readers import ReaderLimits, Unread, answers_to_cut
from services.gateway.answering.running_call import STANDING_S, RunningCall
from shared.client.generation.frames.answer_buffer import weight_of
from shared.errors import InvalidRequest
from shared.messages import Delta, GenerateRequest, Sampling, TokenLogprob, Tokens, TopLogprob

LIMITS = ReaderLimits(wait_s=30.0, total=1000, of_party=600)


def test_a_reader_that_takes_nothing_for_too_long_is_cut_off() -> None:
    answers = [Unread("a", 5), Unread("a", 5, waited_s=29.0), Unread("a", 5, waited_s=31.0)]
    (cut,) = answers_to_cut(answers, LIMITS).items()
    assert (cut[0], cut[1].code, cut[1].data["reason"]) == (2, "cancelled", "slow_reader")


def test_a_reader_that_is_waited_for_and_falls_far_behind_is_cut_off_before_its_request_is() -> None:
    answers = [
        Unread("a", 5, waited_s=1.0, behind=0.4),
        Unread("a", 5, waited_s=1.0, behind=0.6),
        Unread("a", 5, behind=0.9),  # nothing is being sent: the answer is not complete yet
    ]
    assert list(answers_to_cut(answers, LIMITS)) == [1]


def test_only_a_reader_that_is_waited_for_is_told_that_it_did_not_read() -> None:
    """After a pause of the whole gateway its call is late, and so are the deadlines of its generations."""
    delivery = cast(Any, SimpleNamespace(waits_since=0.0, unsent=0, started=False))
    connection = cast(Any, SimpleNamespace(gone=False, on_gone=None))
    caller = new_caller("/v1/chat/completions", {}, connection, delivery)

    async def unread_after(seconds: float) -> Unread:
        call = RunningCall(caller, set(), 3.0)
        async with call:
            return call.unread(asyncio.get_running_loop().time() + seconds)

    assert not asyncio.run(unread_after(3.1)).late
    ended = asyncio.run(unread_after(3.1 + STANDING_S))
    delivery.waits_since = 0.001
    unread = asyncio.run(unread_after(3.1))
    messages = [error.message for error in answers_to_cut([ended, unread], LIMITS).values()]
    assert ["did not end" in messages[0], "did not read" in messages[1]] == [True, True]


def test_of_a_tenant_above_its_share_the_largest_goes_and_others_are_not_touched() -> None:
    answers = [Unread("a", 100), Unread("a", 550), Unread("b", 250), Unread("b", 90)]
    (cut,) = answers_to_cut(answers, LIMITS).items()
    assert (cut[0], cut[1].code, cut[1].data["reason"]) == (1, "overloaded", "gateway_memory")
    assert "'a'" in cut[1].message


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 500), st.floats(0, 40)), max_size=20),
    st.integers(1, 2000),
    st.integers(1, 2000),
)
def test_what_is_left_fits_and_nothing_is_cut_without_need(
    given_: list[tuple[str, int, float]], total: int, of_tenant: int
) -> None:
    answers = [Unread(tenant, size, waited) for tenant, size, waited in given_]
    cut = answers_to_cut(answers, ReaderLimits(30.0, total, min(total, of_tenant)))
    left = [answer for index, answer in enumerate(answers) if index not in cut]
    for tenant in "abc":
        assert sum(one.num_bytes for one in left if one.party == tenant) <= min(total, of_tenant)
    assert sum(one.num_bytes for one in left) <= total
    if sum(one.num_bytes for one in answers) <= min(total, of_tenant):
        assert all(answers[position].waited_s > 30 for position in cut)


def requests(count: int = 1, **sampling: Any) -> list[GenerateRequest]:
    options = Sampling(**sampling)
    return [GenerateRequest(request_id="r-1", model="m", prompt="x", sampling=options)] * count


def test_what_a_call_may_ask_for_is_bounded_and_the_fields_are_named() -> None:
    check_cost(requests(n=4, max_tokens=131_072), 524_288)
    check_cost(requests(n=1, max_tokens=20_000, logprobs=20), 524_288)
    check_cost(requests(n=16, max_tokens=0, logprobs=20), 524_288)
    with pytest.raises(InvalidRequest) as caught:
        check_cost(requests(n=16, max_tokens=100_000, logprobs=20), 524_288)
    expected = "16 (`n`) x 100000 (`max_tokens`) x 22 (`logprobs`) = 35200000 entries, and 524288 are allowed"
    assert expected in caught.value.message
    assert caught.value.data["param"] == "max_tokens"
    with pytest.raises(InvalidRequest, match="64 prompts x 1"):
        check_cost(requests(64, max_tokens=10_000), 524_288)


def test_a_frame_weighs_what_it_has() -> None:
    top = [TopLogprob(token_id=index, token="x", logprob=-1.0) for index in range(20)]
    plain = Tokens(request_id="r-1", deltas=[Delta(text="word")])
    rich = Tokens(
        request_id="r-1",
        deltas=[Delta(text="word", logprobs=[TokenLogprob(token_id=1, token="x", logprob=-1.0, top=top)])],
    )
    assert 256 < weight_of(plain) < 1024
    assert weight_of(rich) > weight_of(plain) + 20 * 100
    assert weight_of(Tokens(request_id="r-1", deltas=[Delta(text="w" * 10**6)])) > 10**6
