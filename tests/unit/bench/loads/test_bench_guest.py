"""`ryz bench guest`: what is asked of both, in turns, and the arithmetic of its figures."""

import os
from collections.abc import Sequence

import pytest

from benchmarks.guest import guest as bench
from benchmarks.lib.sse import StreamedAnswer, StreamUsage
from benchmarks.lib.stack import RunningStack
from benchmarks.stack_plans import GuestPlan
from cli.bench.serving.bench_guest import show

ALONE, BEHIND = "http://alone", "http://behind"
STACK = RunningStack(BEHIND, "guest", {"gateway": os.getpid()})
PLAN = GuestPlan(
    url=ALONE,
    tokenizer="demo",
    remote_model="there",
    concurrency=(1, 4),
    prompt_tokens=16,
    tokens=10,
    rounds=3,
)
Asked = tuple[str, str, tuple[tuple[int, ...], ...]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Answers of 10 tokens in 2 s alone, and in 2.5 s behind, whose first token comes 8 ms later."""
    found: list[Asked] = []

    def stream_all(
        url: str, model: str, prompts: Sequence[Sequence[int]], tokens: int, _limit_s: float
    ) -> tuple[list[StreamedAnswer], float]:
        found.append((url, model, tuple(map(tuple, prompts))))
        first, end = (0.5, 2.0) if url == ALONE else (0.508, 2.5)
        answers = [
            StreamedAnswer(100.0, [100 + first, 101.0], 100 + end, StreamUsage(tokens), True) for _ in prompts
        ]
        return answers, 0.0

    monkeypatch.setattr(bench, "stream_all", stream_all)
    return found


def test_both_are_asked_in_turns_for_what_neither_has_seen(asked: list[Asked]) -> None:
    steps = list[str]()
    bench.measure(PLAN, STACK, range(1000), steps.append)
    assert len(steps) == len(asked) // 2 == len(PLAN.concurrency) * (PLAN.rounds + 1)
    for first, second in zip(asked[::2], asked[1::2], strict=True):
        assert {first[:2], second[:2]} == {(ALONE, "there"), (BEHIND, "guest")}
    assert len({first[0] for first in asked[::2]}) == 2, "neither is always the first"
    prompts = [prompt for _, _, given in asked for prompt in given]
    assert len(set(prompts)) == len(prompts) == 2 * 4 * (1 + 4)
    assert {len(prompt) for prompt in prompts} == {16}


@pytest.mark.usefixtures("asked")
def test_shares_and_differences(capsys: pytest.CaptureFixture[str]) -> None:
    report = bench.measure(PLAN, STACK, range(1000), lambda _: None)
    assert report["rows"][1] == {
        "concurrency": 4,
        "alone_tokens_per_s": 20.0,
        "behind_tokens_per_s": 16.0,
        "share": 0.8,
        "alone_ttft_p50_ms": 500.0,
        "behind_ttft_p50_ms": 508.0,
        "more_ttft_ms": 8.0,
    }
    assert report["cpu_ms_per_token"].keys() == {"gateway"}
    show({**report, "machine": {"cpu": "A", "usable_cores": 2}, "commit": "c"})
    assert "0.800" in capsys.readouterr().out
