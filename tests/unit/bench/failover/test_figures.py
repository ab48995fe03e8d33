"""The arithmetic of `ryz bench failover`: which pause belongs to which fault, and what counts as equal."""

from array import array
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.failover.figures import InjectedFault, figures
from benchmarks.failover.fleet import mean_fetch_s
from benchmarks.failover.streams import Readers, Reading, make_requests, same_answer
from benchmarks.lib.measuring import spread
from shared.client import Choice, Completion
from shared.client.generation.attempts import Interruption
from shared.messages import Usage


def reading(arrivals: list[float], *lost: float) -> Reading:
    one = Reading(0, began=0.0, arrivals=array("d", arrivals), ended=arrivals[-1])
    for at in lost:
        one.interruptions.append(Interruption("g0", "silent", at, at, at + 0.01, at + 0.04))
    return one


def report(faults: list[InjectedFault], *readings: Reading) -> dict[str, Any]:
    readers = SimpleNamespace(readings=list(readings), unequal=1, failures=["deadline_exceeded: late", "x"])
    return figures(faults, cast(Readers, readers), [reading([1.0, 1.01, 1.03])])


def test_a_pause_counts_for_the_streams_whose_group_was_hit() -> None:
    hit, other = reading([1.0, 1.99, 2.1, 2.2], 2.02), reading([1.0, 1.98, 2.03, 2.2])
    over = reading([0.5, 1.0])  # ended before the fault
    measured = report([InjectedFault("leader", "g0", 2.0, back_s=1.5, fetch_s=0.02)], hit, other, over)
    assert measured["interrupted"] == 1
    assert measured["pause_ms"]["p50"] == 110.0
    assert measured["others_ms"]["p50"] == 170.0  # from 2.03 to the next piece at 2.2, within the window
    parts = measured["breakdown_ms"]
    assert [parts[name]["p50"] for name in ("detect", "republish", "fetch", "first_token")] == [
        20.0, 10.0, 20.0, 30.0,
    ]  # fmt: skip
    assert (measured["unequal"], measured["lost"], measured["hung"]) == (1, 2, 1)
    assert measured["killed"] == {"rank": 0, "leader": 1}
    (row,) = measured["faults"]
    assert (row["streams"], row["pause_ms"]["max"], row["back_s"]) == (1, 110.0, 1.5)


def test_what_the_next_fault_did_is_not_put_down_to_the_one_before() -> None:
    other = reading([1.0, 1.98, 2.03, 2.5, 2.9, 3.0], 2.53)  # hit by the second fault only
    measured = report([InjectedFault("rank", "g1", 2.0), InjectedFault("rank", "g0", 2.51)], other)
    assert measured["interrupted"] == 1
    assert [row["streams"] for row in measured["faults"]] == [0, 1]
    assert measured["others_ms"]["p50"] == 470.0
    assert measured["pause_ms"]["p50"] == 400.0


def test_losses_that_no_pause_stands_for_are_reported() -> None:
    hit = reading([1.9, 2.11, 2.2], 2.02)
    late = reading([2.2, 2.3], 2.02)  # sent to the group after its loss
    late.began = 2.01
    measured = report([InjectedFault("rank", "g0", 2.0)], hit, late)
    assert (measured["interrupted"], measured["uncounted"]) == (1, 1)


def test_requests_that_had_nothing_to_show_are_no_pauses() -> None:
    waits, begins = reading([2.5, 2.6], 2.02), reading([2.3, 2.9])  # neither has a frame at the fault
    measured = report([InjectedFault("rank", "g0", 2.0)], waits, begins)
    assert (measured["interrupted"], measured["uncounted"]) == (1, 0)
    assert (measured["unbegun_ms"]["p50"], measured["pause_ms"]["max"]) == (500.0, 0.0)
    assert measured["others_ms"]["max"] == 0.0


def test_the_longest_of_several_pauses_after_a_fault_counts() -> None:
    one = reading([1.0, 2.1, 2.2, 2.9, 9.0])
    assert one.pause_around(2.0, 3.0) == 9.0 - 2.9
    assert one.pause_around(2.0, 2.5) == 1.1


def test_nothing_gives_zeros() -> None:
    assert spread([]) == {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}
    assert report([])["pause_ms"]["max"] == 0.0


def test_fetches_are_those_of_the_other_group() -> None:
    before = {"g0": (10.0, 1.0), "g1": (4.0, 0.4)}
    after = {"g0": (99.0, 9.0), "g1": (6.0, 0.5)}
    assert abs(mean_fetch_s(before, after, without="g0") - 0.05) < 1e-9
    assert mean_fetch_s(before, before, without="g0") == 0.0


def test_answers_are_compared_in_all_that_a_caller_sees() -> None:
    def answer(text: str, tokens: int = 3, cached: int = 0) -> Completion:
        usage = Usage(prompt_tokens=5, completion_tokens=tokens, cached_tokens=cached)
        return Completion("r", "", "g0", [Choice(0, text, b"")], usage)

    assert same_answer(answer("a"), answer("a", cached=16))
    assert not same_answer(answer("a"), answer("b"))
    assert not same_answer(answer("a"), answer("a", tokens=4))


def test_requests_are_of_all_kinds() -> None:
    made = make_requests("m", 32, 16)
    samplings = [one.sampling for one in made]
    assert sum(one.temperature == 0 for one in samplings) == 16
    assert any(one.n == 2 for one in samplings)
    assert any(one.stop for one in samplings)
    assert any(one.presence_penalty for one in samplings)
    assert any(one.logprobs >= 0 for one in samplings)
    assert len({one.messages[0].content for one in made if one.messages}) == 32


def test_a_model_without_a_template_gets_prompts() -> None:
    chats, prompts = (make_requests("m", 8, 16, chat=chat) for chat in (True, False))
    assert [one.messages[0].content for one in chats if one.messages] == [one.prompt for one in prompts]
    assert all(one.messages is None for one in prompts)
