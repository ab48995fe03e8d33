"""The course of a request: every instant belongs to one span, and the spans are named by what took them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.explain.command import describe_interruption
from cli.explain.course import (
    BEFORE_LOSS,
    IN_FLIGHT,
    REFUSAL,
    RESUMED,
    UNKNOWN,
    WAITED_FOR_MODEL,
    Course,
    HeardExplanation,
    courses,
)
from shared.messages import Explanation, Moment, Timeline
from shared.telemetry.spans.names import AGAIN, SPANS

START_US = 1_700_000_000_000_000
Noted = tuple[int, str, dict[str, str | int | float]]


def heard(
    service: str, *seen: Noted, attempt: int = 0, ahead_us: int = 0, round_trip_us: int = 100
) -> HeardExplanation:
    moments = [Moment(name=name, at_us=START_US + at + ahead_us, data=data) for at, name, data in seen]
    timeline = Timeline(request_id="r-1", attempt=attempt, moments=moments)
    sent_us = START_US + 10_000_000
    explanation = Explanation(
        service=service,
        instance_id=f"{service}-1",
        now_us=sent_us + round_trip_us // 2 + ahead_us,
        timelines=[timeline],
    )
    return HeardExplanation(explanation, sent_us, sent_us + round_trip_us)


def whats(course: Course) -> list[str]:
    return [span.what for span in course.spans]


GATEWAY = heard(
    "gateway",
    (0, "received", {"route": "/v1/chat/completions"}),
    (100, "read", {"bytes": 7}),
    (200, "published", {"attempt": 0}),
    (450, "accepted", {"attempt": 0, "group": "g0"}),
    (1_400, "first frame", {"attempt": 0}),
    (2_600, "last frame", {"attempt": 0}),
    (2_700, "answered", {"status": 200}),
)
ROUTER = heard("router", (300, "routed", {}), (350, "decided", {"group": "g0"}))
LEADER = heard(
    "worker",
    (400, "taken", {}),
    (500, "tokenized", {}),
    (600, "queued", {"kv": "new"}),
    (900, "computing", {"choice": 0, "steps": 5, "compute_s": 1.0, "linears_s": 0.5}),
    (1_300, "first token", {}),
    (2_400, "last token", {"steps": 15, "compute_s": 1.001, "linears_s": 0.5005}),
    (2_500, "done", {}),
)


def test_a_request_is_followed_from_hop_to_hop() -> None:
    (course,) = courses([LEADER, GATEWAY, ROUTER])
    assert [(span.what, span.took_ms) for span in course.spans] == [
        ("key, limits and body", 0.1),
        ("body into a request", 0.1),
        ("to the router", 0.1),
        ("choice of a group", 0.05),
        ("to the leader", 0.05),
        ("template and tokens", 0.1),
        ("look-up of stored KV", 0.1),
        ("queue", 0.3),
        ("prefill", 0.4),
        ("decode", 1.1),
        ("end of the turn", 0.1),
        ("last frame to the gateway", 0.1),
        ("answer to the client", 0.1),
    ]
    assert course.total_ms == pytest.approx(2.7)
    assert course.first_frame_ms == 1.4
    decode = next(span for span in course.spans if span.what == "decode")
    assert decode.data == {"steps": 10, "computed_ms": 1.0, "linears": "50%"}


def test_a_leader_that_died_leaves_a_gap_that_is_named() -> None:
    gateway = heard(
        "gateway",
        (0, "received", {}),
        (100, "published", {"attempt": 0}),
        (500, "published", {"attempt": 1, "lost": "g0", "silent_ms": 0.2}),
        (900, "last frame", {"attempt": 1}),
        (1_000, "answered", {"status": 200}),
    )
    second = heard("worker", (600, "taken", {}), (800, "done", {}), attempt=1)
    (course,) = courses([gateway, second])
    assert whats(course) == [
        "body into a request",
        UNKNOWN,
        RESUMED,
        "to the leader",
        "end of the turn",
        "last frame to the gateway",
        "answer to the client",
    ]
    assert [course.spans[index].took_ms for index in (1, 2)] == pytest.approx([0.2, 0.2])
    assert course.spans[2].data == {"lost": "g0", "silent_ms": 0.2}
    (alone,) = courses([gateway])
    assert UNKNOWN in whats(alone)
    assert alone.total_ms == course.total_ms == 1.0


def test_a_wait_for_a_model_is_one_line() -> None:
    waiting = heard(
        "gateway",
        (0, "received", {}),
        (1_000, "published", {"attempt": 0}),
        (60_000, "offered again", {"attempt": 0, "asked": 2, "reason": "waking"}),
        (260_000, "published", {"attempt": 0}),
        (9_000_000, "offered again", {"attempt": 0, "asked": 80, "reason": "waking"}),
        (9_003_000, "accepted", {"attempt": 0}),
        (9_200_000, "last frame", {"attempt": 0}),
        (9_201_000, "answered", {"status": 200}),
    )
    refused = [
        heard("router", (at, "routed", {}), (at + 100, "refused", {"reason": "waking"}))
        for at in (1_500, 61_000)
    ]
    routed = heard("router", (9_001_000, "routed", {}), (9_001_100, "decided", {"group": "g1"}))
    leader = heard("worker", (9_002_000, "taken", {}), (9_199_000, "done", {}))
    (course,) = courses([waiting, *refused, routed, leader])
    assert whats(course) == [
        "body into a request",
        WAITED_FOR_MODEL,
        "to the router",
        "choice of a group",
        "to the leader",
        "end of the turn",
        "last frame to the gateway",
        "answer to the client",
    ]
    took_ms, data = course.spans[1].took_ms, course.spans[1].data
    assert (took_ms, data) == (8_999.0, {"asked": 80, "reason": "waking"})


def test_a_wait_for_any_group_is_one_line_too() -> None:
    gateway = heard(
        "gateway",
        (0, "received", {}),
        (100, "published", {"attempt": 0}),
        (5_000_000, "offered again", {"attempt": 0, "asked": 9, "reason": "no_group"}),
        (5_002_000, "answered", {"status": 503}),
    )
    routers = [
        heard("router", (at, "routed", {}), (at + 100, "refused", {"reason": "no_group"}))
        for at in (200, 30_000, 800_000, 5_000_500)
    ]
    (course,) = courses([gateway, *routers])
    assert whats(course) == [
        "body into a request",
        "wait for a group",
        "to the router",
        "choice of a group: none",
        "answer to the client",
    ]


def test_a_group_that_was_frozen_is_no_outage_of_a_stream_that_went_on() -> None:
    """It answered for 2 s, was stopped, and ran again 13 s later while another group had the request."""
    gateway = heard(
        "gateway",
        (0, "received", {}),
        (1_000, "published", {"attempt": 0}),
        (2_300_000, "published", {"attempt": 1, "lost": "g0", "reason": "silent", "silent_ms": 300.0}),
        (15_000_100, "last frame", {"attempt": 0}),  # of the group that runs again
        (20_000_000, "last frame", {"attempt": 1}),
        (20_001_000, "answered", {"status": 200}),
    )
    frozen = heard(
        "worker",
        (2_000, "taken", {"group": "g0"}),
        (3_000, "computing", {"choice": 0}),
        (4_000, "first token", {}),
        (15_000_000, "failed", {"code": "cancelled"}),
    )
    router = heard("router", (2_301_000, "routed", {}), (2_302_000, "decided", {"group": "g1"}), attempt=1)
    second = heard(
        "worker",
        (2_303_000, "taken", {"group": "g1"}),
        (2_304_000, "computing", {"choice": 0}),
        (2_330_000, "first token", {}),
        (19_999_000, "last token", {}),
        attempt=1,
    )
    (course,) = courses([gateway, frozen, router, second])
    long = [(span.what, round(span.took_ms)) for span in course.spans if span.took_ms > 100]
    assert long == [
        (BEFORE_LOSS, 1_996),
        (RESUMED, 300),
        ("decode", 17_669),
    ]
    assert sum(span.took_ms for span in course.spans) == pytest.approx(20_001)
    (loss,) = course.interruptions
    assert describe_interruption(loss) == (
        "group g0 was lost (silent) and had sent nothing from 2000.0 ms on; group g1 went on, without tokens "
        "for 330.0 ms in between"
    )


def test_a_router_that_was_frozen_is_no_part_of_an_attempt_that_went_on() -> None:
    gateway = heard(
        "gateway",
        (0, "received", {}),
        (10, "published", {"attempt": 0}),
        (50, "published", {"attempt": 1, "lost": "g0", "reason": "disconnected"}),
        (900, "answered", {}),
    )
    late = heard("router", (500, "routed", {}), (600, "decided", {"group": "g0"}))
    (course,) = courses([gateway, late])
    assert {span.service for span in course.spans} == {"gateway"}
    assert "no record says when" in describe_interruption(course.interruptions[0])


def test_a_preempted_sequence_is_out_of_the_batch() -> None:
    leader = heard(
        "worker",
        (0, "taken", {}),
        (10, "computing", {"choice": 0}),
        (11, "computing", {"choice": 1}),
        (90, "computing", {"choice": 0}),
        (99, "last token", {}),
    )
    assert whats(courses([leader])[0]) == ["queue", "queue", AGAIN, "decode"]


def test_clocks_of_other_machines_are_set_right() -> None:
    ahead = heard("router", (300, "routed", {}), (350, "decided", {}), ahead_us=3_600_000_000)
    (course,) = courses([GATEWAY, ahead])
    assert course.total_ms == pytest.approx(2.7)
    assert [span.begins_ms for span in course.spans if span.service == "router"] == [0.2, 0.3]


def test_what_comes_after_the_answer_is_not_counted() -> None:
    late = heard("worker", (400, "taken", {}), (9_000, "failed", {"code": "cancelled"}))
    (course,) = courses([GATEWAY, late])
    assert course.total_ms == pytest.approx(2.7)


NAMES = sorted({name for _, name in SPANS} | {"received", "accepted", "superseded", "unheard of"})


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["gateway", "router", "worker"]),
            st.sampled_from(NAMES),
            st.integers(0, 10**9),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_spans_sum_to_the_whole_whatever_was_noted(noted: list[tuple[str, str, int, int]]) -> None:
    explanations = [heard(service, (at, name, {}), attempt=attempt) for service, name, at, attempt in noted]
    (course,) = courses(explanations)
    ends = [span.begins_ms + span.took_ms for span in course.spans]
    assert all(span.took_ms >= 0 for span in course.spans)
    assert course.total_ms == pytest.approx(max(ends, default=0.0))
    assert [span.begins_ms for span in course.spans[1:]] == pytest.approx(ends[:-1])


def test_a_request_that_was_refused_was_in_no_group() -> None:
    (course,) = courses(
        [
            heard(
                "gateway",
                (0, "received", {}),
                (50, "published", {"attempt": 0}),
                (400, "last frame", {"attempt": 0}),
                (500, "answered", {}),
            ),
            heard("router", (200, "routed", {}), (300, "refused", {"reason": "model_not_found"})),
        ]
    )
    assert [span.what for span in course.spans] == [
        SPANS["gateway", "published"], SPANS["router", "routed"], SPANS["router", "refused"], REFUSAL,
        SPANS["gateway", "answered"],
    ]  # fmt: skip


def test_a_request_that_is_not_over_lasts_until_now() -> None:
    (course,) = courses([heard("gateway", (0, "received", {}), (50, "read", {}), round_trip_us=0)])
    assert [span.what for span in course.spans] == [SPANS["gateway", "read"], IN_FLIGHT]
    assert course.total_ms == pytest.approx(10_000)
