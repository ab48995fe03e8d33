"""Measures a server of others alone and behind a group, in turns, by equal completions.

Both get prompts of token ids that neither has seen, so that no prefix cache helps one of them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.lib.cpu import CpuMeter
from benchmarks.lib.measuring import Progress, milliseconds
from benchmarks.lib.sse import StreamedAnswer
from benchmarks.lib.stack import RunningStack
from benchmarks.lib.streams import stream_all
from benchmarks.stack_plans import GuestPlan

_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class _Turn:
    """The answers of one turn, which were asked for together."""

    tokens_per_s: float
    first_token_s: float


def measure(
    plan: GuestPlan, stack: RunningStack, vocabulary: Sequence[int], progress: Progress
) -> dict[str, Any]:
    """Measure each concurrency, with a turn of each for warm-up.

    Args:
        vocabulary: Tokens that prompts are made of.

    Returns:
        A row for each concurrency, and CPU milliseconds a token by service at the highest.

    Raises:
        BenchError: An answer is not complete and right, or a process of the stack ended.
    """
    chance = random.Random(plan.seed)
    rows, cpu = list[dict[str, Any]](), dict[str, float]()
    for concurrency in plan.concurrency:
        turns = list[tuple[_Turn, _Turn]]()
        meter, used = CpuMeter(stack.pids), dict.fromkeys(stack.pids, 0.0)
        for number in range(plan.rounds + 1):
            progress(f"{concurrency} at once, round {number}")
            pair = dict[bool, _Turn]()
            for alone in random.Random(number).sample((True, False), 2):
                url, model = (plan.url, plan.remote_model) if alone else (stack.url, stack.model)
                prompts = [chance.choices(vocabulary, k=plan.prompt_tokens) for _ in range(concurrency)]
                meter.start()
                pair[alone] = _turn(stream_all(url, model, prompts, plan.tokens, _LIMIT_S)[0])
                if number and not alone:
                    used = {name: used[name] + spent for name, spent in meter.read().items()}
            if number:
                turns.append((pair[True], pair[False]))
        rows.append(_row(concurrency, turns))
        tokens = concurrency * plan.tokens * plan.rounds
        cpu = {name: milliseconds(spent / tokens) for name, spent in used.items()}
    return {"rows": rows, "cpu_ms_per_token": cpu}


def _turn(answers: Sequence[StreamedAnswer]) -> _Turn:
    began = min(answer.sent for answer in answers)
    ended = max(answer.ended for answer in answers)
    waits = [(answer.times[0] if answer.times else answer.ended) - answer.sent for answer in answers]
    return _Turn(sum(answer.tokens for answer in answers) / (ended - began), median(waits))


def _row(concurrency: int, turns: Sequence[tuple[_Turn, _Turn]]) -> dict[str, Any]:
    return {
        "concurrency": concurrency,
        "alone_tokens_per_s": round(median(alone.tokens_per_s for alone, _ in turns), 1),
        "behind_tokens_per_s": round(median(behind.tokens_per_s for _, behind in turns), 1),
        "share": round(median(behind.tokens_per_s / alone.tokens_per_s for alone, behind in turns), 4),
        "alone_ttft_p50_ms": milliseconds(median(alone.first_token_s for alone, _ in turns), 2),
        "behind_ttft_p50_ms": milliseconds(median(behind.first_token_s for _, behind in turns), 2),
        "more_ttft_ms": milliseconds(
            median(behind.first_token_s - alone.first_token_s for alone, behind in turns), 2
        ),
    }
