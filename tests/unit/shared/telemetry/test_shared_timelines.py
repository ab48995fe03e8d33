"""Timelines of requests: what is marked is found again, within bounds."""

import time

from shared.telemetry.timelines import MAX_MOMENTS, UNRECORDED, Timelines


def test_marks_become_times_since_1970() -> None:
    clock = iter([10, 2_000_010, 5_000_000]).__next__
    timelines = Timelines(8, clock)
    timeline = timelines.begin("report-7-abc", 1)
    timeline.mark("taken", {"group": "g0"})
    timeline.mark("done")
    before_us = time.time_ns() // 1000
    (found,) = timelines.find("report-7", 10)
    first, second = found.moments
    assert (found.request_id, found.attempt) == ("report-7-abc", 1)
    assert (first.name, first.data, second.name) == ("taken", {"group": "g0"}, "done")
    assert second.at_us - first.at_us == 2000
    assert abs(second.at_us - before_us) < 1_000_000


def test_the_newest_requests_are_kept() -> None:
    timelines = Timelines(3)
    for number in range(5):
        timelines.begin(f"r-{number}").mark("taken")
    assert [found.request_id for found in timelines.find("r-", 10)] == ["r-2", "r-3", "r-4"]
    assert [found.request_id for found in timelines.find("r-", 1)] == ["r-4"]
    assert timelines.find("other", 10) == []


def test_a_timeline_is_bounded() -> None:
    timelines = Timelines(1)
    timeline = timelines.begin("r")
    for _ in range(MAX_MOMENTS + 3):
        timeline.mark("computing")
    (found,) = timelines.find("r", 1)
    assert (len(found.moments), found.left_out) == (MAX_MOMENTS, 3)


def test_what_repeats_takes_one_moment() -> None:
    timelines = Timelines(2, iter(range(1000, 1_000_000, 1000)).__next__)
    timeline = timelines.begin("r")
    timeline.mark("published")
    for asked in range(2, 500):
        timeline.mark_again("offered again", {"asked": asked})
    timeline.mark("accepted")
    timeline.mark_again("offered again", {"asked": 1})
    (found,) = timelines.find("r", 1)
    assert [(one.name, one.data) for one in found.moments] == [
        ("published", {}),
        ("offered again", {"asked": 499}),
        ("accepted", {}),
        ("offered again", {"asked": 1}),
    ]
    assert found.left_out == 0
    assert found.moments[1].at_us - found.moments[0].at_us == 498


def test_a_draft_is_kept_only_if_that_is_said() -> None:
    timelines = Timelines(2)
    timelines.begin("kept")
    for number in range(5):
        timelines.draft(f"draft-{number}").mark("refused")
    timelines.keep(timelines.draft("later"))
    assert [found.request_id for found in timelines.find("", 10)] == ["kept", "later"]


def test_nothing_is_kept_if_that_is_asked_for() -> None:
    timelines = Timelines(0)
    assert timelines.begin("r") is timelines.draft("r") is UNRECORDED
    timelines.keep(UNRECORDED)
    UNRECORDED.mark("taken", {"group": "g0"})
    UNRECORDED.mark_again("offered again")
    assert timelines.find("", 1) == []
