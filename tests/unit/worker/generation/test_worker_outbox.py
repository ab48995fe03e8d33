"""Eviction from the retransmit buffer: what it keeps of each tenant, and what it drops first."""

import random
from typing import Any

import pytest

from services.worker.domain.generation.retransmit_buffer import RetransmitBuffer
from shared.messages import (
    ChatMessage,
    Delta,
    Done,
    Failed,
    GenerateRequest,
    ResumePoint,
    Sampling,
    SessionRef,
    Tokens,
    Usage,
)

MAX_BYTES = 100_000


def make(max_bytes: int = MAX_BYTES) -> RetransmitBuffer:
    return RetransmitBuffer(retention_s=10, max_bytes=max_bytes)


def begin(box: RetransmitBuffer, tenant: str, name: str, prompt_bytes: int, **more: Any) -> str:
    """Adds a request with one frame; returns its key."""
    key = f"{tenant}/{name}"
    request = GenerateRequest(
        request_id=name, model="m", prompt="x" * prompt_bytes, note=b"n", tenant=tenant, **more
    )
    box.open_attempt(key, 0, 0, request)
    box.add_frame(key, Tokens(request_id=name, seq=0, deltas=[Delta(text="y" * 100)]), 0.0)
    return key


def end(box: RetransmitBuffer, key: str, now: float = 1.0) -> None:
    box.add_frame(key, Done(request_id=key.partition("/")[2], seq=1, usage=Usage()), now)


def test_a_tenants_flood_costs_no_other_tenants_answers() -> None:
    box = make()
    kept = [begin(box, "small", f"s{number}", 500, call_key=f"k{number}") for number in range(20)]
    for key in kept:
        end(box, key)
    for number in range(300):
        key = begin(box, "large", f"l{number}", 20_000, call_key="k")
        if number % 3:
            end(box, key)
        assert box.num_bytes <= MAX_BYTES
    for number, key in enumerate(kept):
        assert len(box.frames_from(key, 0, 0).frames) == 2
        assert box.key_of_call("small", f"k{number}") == key


def test_prompts_of_requests_that_run_are_given_up_before_answers_of_others() -> None:
    box = make()
    answer = begin(box, "small", "s", 500)
    end(box, answer)
    running = [begin(box, "large", f"l{number}", 30_000) for number in range(30)]
    assert box.num_bytes <= MAX_BYTES
    assert len(box.frames_from(answer, 0, 0).frames) == 2
    for key in running:  # each can still be attached to and read
        retained = box.kept(key)
        assert retained is not None
        assert retained.offer("large") is not None
        assert len(retained.frames) == 1


def test_a_tenant_may_have_all_of_it_and_loses_what_ended_first() -> None:
    box = make(5_000)
    keys = [begin(box, "t", f"r{number}", 100) for number in range(20)]
    for key in keys:
        end(box, key)
    known = [key for key in keys if box.attempt(key) is not None]
    assert known == keys[-len(known) :]
    assert 4_000 < box.num_bytes <= 5_000


def test_requests_without_prompt_and_frames_cannot_be_had_when_there_is_no_room_for_them() -> None:
    box = make(5_000)
    for number in range(100):
        begin(box, "t", f"r{number}", 0, call_key=f"k{number}")
        assert box.num_bytes <= 5_000


FAILED = Failed(request_id="r", seq=1, code="deadline_exceeded", message="m")
LOST = Failed(request_id="r", seq=1, code="group_lost", message="m", resumable=True)


@pytest.mark.parametrize(
    ("last", "whole"), [(Done(request_id="r", seq=1, usage=Usage()), False), (FAILED, False), (LOST, True)]
)
def test_a_prompt_is_kept_while_it_may_be_needed(last: Done | Failed, whole: bool) -> None:
    box = make(1_000_000)
    asked = GenerateRequest(
        request_id="r",
        model="m",
        tenant="t",
        messages=[ChatMessage(role="user", content="x" * 50_000)],
        sampling=Sampling(n=2, logprobs=3, logit_bias={5: 1.0}, stop=["a"]),
        session=SessionRef(session_id="s"),
        resume=ResumePoint(token_ids=[b"1234" * 500], next_seq=7),
        note=b"n",
        call_key="k",
        call_digest="d",
        confirms=True,
    )
    box.open_attempt("t/r", 0, 0, asked)
    assert 52_000 < box.num_bytes < 54_000
    box.add_frame("t/r", last, 1.0)
    kept = box.kept("t/r")
    assert kept is not None
    offered = kept.offer("t")
    assert offered is not None
    assert (offered == asked) == whole
    assert (box.num_bytes > 50_000) == whole
    assert (offered.prompt, offered.messages is not None) == (None, whole)
    assert (offered.sampling.n, offered.sampling.logprobs, offered.session) == (2, 3, asked.session)
    assert (offered.note, offered.call_key, offered.call_digest) == (b"n", "k", "d")
    assert offered.resume is not None
    assert offered.resume.next_seq == 7
    box.forget_expired(20.0)
    assert box.num_bytes == 0


def test_what_is_abandoned_is_forgotten_in_time() -> None:
    box = make()
    key = begin(box, "t", "r", 500)
    box.abandon_attempt(key, 1.0)
    kept = box.kept(key)
    assert kept is not None
    assert kept.offer("t") is None
    box.abandon_attempt(key, 5.0)  # no effect: it has ended
    box.forget_expired(11.0)
    assert (len(box), box.num_bytes) == (0, 0)
    box.abandon_attempt(key, 20.0)


def test_sums_are_right_whatever_happens() -> None:
    rng, box = random.Random(5), make(20_000)
    open_keys: list[str] = []
    for number in range(3_000):
        now, what = number / 10, rng.random()
        if what < 0.3 or not open_keys:
            name = f"r{rng.randrange(200)}"
            open_keys.append(begin(box, rng.choice("abc"), name, rng.choice([0, 10, 3_000])))
        elif what < 0.5:
            key = open_keys.pop(rng.randrange(len(open_keys)))
            kept = box.kept(key)
            if kept is not None and key in kept.account.running:
                if rng.random() < 0.5:
                    end(box, key, now)
                else:
                    box.abandon_attempt(key, now)
        elif what < 0.55:
            box.forget_expired(now)
        else:
            key = rng.choice(open_keys)
            kept = box.kept(key)
            if kept is not None and key in kept.account.running:
                box.add_frame(
                    key, Tokens(request_id="r", seq=kept.next_seq, deltas=[Delta(text="z" * 50)]), now
                )
        assert box.num_bytes <= 20_000
        everything = [kept for key in "abc" for name in range(200) if (kept := box.kept(f"{key}/r{name}"))]
        assert sum(kept.num_bytes for kept in everything) == box.num_bytes
        accounts = {id(kept.account): kept.account for kept in everything}.values()
        assert sum(account.num_bytes for account in accounts) == box.num_bytes
    for key in {key for key in open_keys if box.kept(key)}:
        box.abandon_attempt(key, 1_000.0)
    box.forget_expired(2_000.0)
    assert (len(box), box.num_bytes) == (0, 0)
