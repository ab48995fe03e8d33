"""`ryz bench sessions`: the drawn workload, the reading of answers, and the arithmetic of its figures."""

import json
import math
from collections import Counter
from itertools import islice
from typing import Any

import pytest

from benchmarks.lib.measuring import BenchError
from benchmarks.lib.service_metrics import ServiceMetrics, between, quantile, read_all
from benchmarks.lib.stack import RunningStack
from benchmarks.sessions.client import ConversationFull, SessionClient, StreamedTurn
from benchmarks.sessions.figures import MeasuredTurns, row
from benchmarks.sessions.sessions import SessionLoad
from benchmarks.sessions.traffic import ConversationLengths, DrawnTurn, draw_turns, openings
from benchmarks.stack_plans import SessionsPlan
from tests.kits.bench.answers import answering, http

HEADERS = "x-ryz-group: g1\r\nx-ryz-route: last_group\r\n"


def streamed(tokens: int = 4, text: str = "a", done: bool = True) -> bytes:
    details = {"cached_tokens": 48, "fetched_tokens": 16}
    usage = {"prompt_tokens": 60, "completion_tokens": tokens, "prompt_tokens_details": details}
    events: list[dict[str, Any]] = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": None},
        {"choices": [{"delta": {"content": text}}], "usage": None},
    ]
    events += [{"choices": [], "usage": usage}] if done else []
    lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return b"".join(lines) + b"data: [DONE]\n\n"


async def one_turn(reply: bytes | None, *, anew: bool = False) -> tuple[StreamedTurn, dict[str, Any]]:
    seen: list[dict[str, Any]] = []

    def answer(_: int, body: bytes) -> bytes | None:
        seen.append(json.loads(body))
        return reply

    async with answering(answer) as port:
        client = SessionClient(f"http://127.0.0.1:{port}", "demo", 1)
        try:
            return await client.ask_turn(7, [{"role": "user", "content": "Hi."}], 4, anew=anew), seen[0]
        finally:
            await client.close()


def test_the_same_seed_draws_the_same_turns_by_zipfs_law() -> None:
    plan = SessionsPlan(sessions=64, zipf=1.1)
    turns = list(islice(draw_turns(plan), 4000))
    assert turns[:100] == list(islice(draw_turns(plan), 100))
    assert turns[:100] != list(islice(draw_turns(SessionsPlan(seed=2)), 100))
    counts = Counter(turn.session for turn in turns)
    law = 1 / sum(rank**-1.1 for rank in range(1, 65))
    assert counts[0] / len(turns) == pytest.approx(law, abs=0.03)
    assert counts[0] / counts[9] == pytest.approx(10**1.1, rel=0.3)
    assert {turn.answer_tokens for turn in turns} == set(range(20, 61))
    assert len({turn.question for turn in turns}) == len(turns)


def test_openings_are_conversations_of_any_length() -> None:
    conversations = openings(SessionsPlan())
    assert len(conversations) == 64
    spoken = [sum(len(message["content"]) for message in said) for said in conversations]
    assert min(spoken) < 1000
    assert 3000 < max(spoken) < 1500 * 4
    assert all(said[-1]["role"] == "assistant" for said in conversations if said)


def test_a_long_conversation_begins_anew_and_late_answers_of_the_old_one_do_not_count() -> None:
    known = ConversationLengths(100)
    assert known.begin_turn(0) == (0, True)
    known.end_turn(0, 0, 60)
    assert known.begin_turn(0) == (0, False)
    known.end_turn(0, 0, 120)
    assert known.begin_turn(0) == (1, True)
    assert known.begin_turn(0) == (1, True)  # the first answer has not arrived yet
    known.end_turn(0, 0, 130)
    known.end_turn(0, 1, 40)
    assert known.begin_turn(0) == (1, False)
    known.begin_conversation(0, 1)
    assert known.begin_turn(0) == (2, True)
    known.begin_conversation(0, 1)  # a second turn that conversation 1 had no room for
    known.end_turn(0, 2, 40)
    assert known.begin_turn(0) == (2, False)


FULL = http(b"{}", "400 Bad Request", "x-ryz-reason: context_length_exceeded\r\n")


async def test_a_turn_that_the_conversation_has_no_room_for_begins_a_new_one() -> None:
    replies = [http(streamed()), FULL, http(streamed()), http(streamed())]
    asked: list[int] = []

    def answer(number: int, body: bytes) -> bytes:
        asked.append(len(json.loads(body)["messages"]))
        return replies[number]

    async with answering(answer) as port:
        stack = RunningStack(f"http://127.0.0.1:{port}", "demo", {"worker-g1": 1})
        load = SessionLoad(SessionsPlan(sessions=1, clients=1), stack)
        try:
            for _ in range(3):
                await load.send_turn(DrawnTurn(0, "Hi.", 4), [])
        finally:
            await load.client.close()
    assert asked == [1, 1, 1, 1]
    measured = load.measured
    assert (len(measured.answers), measured.full, dict(measured.problems)) == (3, 1, {})


@pytest.mark.parametrize(("anew", "error"), [(False, ConversationFull), (True, BenchError)])
async def test_only_a_turn_that_is_appended_may_find_the_conversation_full(
    anew: bool, error: type[BenchError]
) -> None:
    with pytest.raises(BenchError, match="status 400: context_length_exceeded") as raised:
        await one_turn(FULL, anew=anew)
    assert type(raised.value) is error


async def test_an_answer_says_where_it_came_from_and_what_was_computed() -> None:
    answer, body = await one_turn(http(streamed(), extra=HEADERS))
    assert (answer.session, answer.group, answer.reason) == (7, "g1", "last_group")
    assert (answer.prompt, answer.cached, answer.fetched, answer.completion) == (60, 48, 16, 4)
    assert answer.computed == 16
    assert 0 < answer.first_s < 60
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (http(b"{}", "503 No", "x-ryz-reason: overloaded\r\n"), "status 503: overloaded"),
        (http(b"what", "500 No"), "status 500: no reason given"),
        (http(streamed(done=False)), "not a complete answer"),
        (http(streamed(text="")), "not a complete answer"),
        (http(streamed(tokens=3)), "not a complete answer"),
        (http(b"data: {no\n\n"), "an event is no completion chunk"),
        (None, "the connection broke"),
    ],
)
async def test_anything_else_is_a_problem_with_its_words(reply: bytes | None, problem: str) -> None:
    with pytest.raises(BenchError, match=problem):
        await one_turn(reply)


def metrics(busy_s: float, decisions: tuple[int, int, int] = (0, 0, 0)) -> ServiceMetrics:
    buckets = zip(("0.0001", "0.001", "+Inf"), decisions, strict=True)
    name = "ryz_router_decision_seconds"
    return ServiceMetrics(
        f"# TYPE ryz_worker_step_seconds histogram\nryz_worker_step_seconds_sum {busy_s}\n"
        f"# TYPE {name} histogram\n"
        + "".join(f'{name}_bucket{{le="{bound}"}} {count}\n' for bound, count in buckets)
    )


def test_a_quantile_is_read_from_what_was_counted_in_between() -> None:
    before, after = metrics(0, (10, 10, 10)), metrics(0, (60, 110, 110))
    name = "ryz_router_decision_seconds"
    counted = between(before.buckets(name), after.buckets(name))
    assert counted == {0.0001: 50, 0.001: 100, math.inf: 100}
    assert quantile(counted, 0.25) == pytest.approx(0.00005)
    assert quantile(counted, 0.75) == pytest.approx(0.00055)
    assert quantile({0.1: 0, math.inf: 4}, 0.5) == 0.1
    assert math.isnan(quantile({0.1: 0, math.inf: 0}, 0.5))


def test_a_row_adds_up_what_the_answers_say() -> None:
    measured = MeasuredTurns(
        2.0,
        ["g0", "g1"],
        [
            StreamedTurn(0, "g0", "preferred", 100, 60, 0, 20, 0.010),
            StreamedTurn(0, "g0", "preferred", 100, 60, 0, 20, 0.020),
            StreamedTurn(1, "g1", "spill_wait", 200, 180, 120, 40, 0.030),
            StreamedTurn(0, "g1", "preferred", 100, 100, 0, 20, 0.040),
        ],
        Counter({"status 503: overloaded": 2}),
        before={"router": metrics(0), "worker-g0": metrics(1.0), "worker-g1": metrics(2.0)},
        after={"router": metrics(0, (98, 100, 100)), "worker-g0": metrics(4.0), "worker-g1": metrics(3.0)},
    )
    found = row("hybrid", measured)
    assert found["computed_tokens"] == {"g0": 120, "g1": 80}
    assert found["imbalance_tokens"] == pytest.approx(0.2)
    assert found["imbalance_busy"] == pytest.approx(0.5)
    assert found["imbalance_requests"] == 0
    assert (found["hit_rate"], found["fetched_rate"]) == (0.56, 0.24)
    assert (found["turns"], found["turns_per_s"], found["busiest_session"]) == (4, 2.0, 0.75)
    assert (found["decision_p50_us"], found["decision_p99_us"]) == (pytest.approx(51.0), pytest.approx(550.0))
    assert found["reasons"] == {"preferred": 0.75, "spill_wait": 0.25}
    assert found["full"] == 0
    assert (found["errors"], found["error_kinds"]) == (2, {"status 503: overloaded": 2})


async def test_a_service_without_metrics_is_named() -> None:
    with pytest.raises(BenchError, match=r"no metrics of worker-g0 \(process 4194303\)"):
        await read_all({"gateway": 1, "worker-g0": 4_194_303})
