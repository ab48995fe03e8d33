"""Answers that are cut at random characters and continued are the answers that were not cut.

At temperature 0 the continued answer equals the uncut one wherever the ids of the given text, as far as they
are in the prompt, are those that the model had written. Elsewhere it is another valid answer: the text has
whole characters at the seam, and fits its schema.
"""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from cli.models.catalogue import DEMO
from tests.kits.answers.continued_cases import Case, Kind, cases, fits
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.clients.served import KEY, Served, serving

pytestmark = pytest.mark.timeout(scaled(300, 7200))
ANSWERS: dict[Kind, int] = {"text": scaled(6, 100), "schema": scaled(3, 40), "call": scaled(3, 40)}
CUTS: dict[Kind, int] = {"text": scaled(3, 6), "schema": scaled(3, 5), "call": scaled(3, 5)}
MAX_TOKENS = {"text": 48, "schema": 160, "call": 160}
# of the cuts, at least: what a grammar forces has other tokens than the same text has by itself
SAME_IDS: dict[Kind, float] = {"text": 0.7, "schema": 0.2, "call": 0.2}
AT_ONCE = 8
BROKEN = "\ufffd"  # stands for bytes that are no character


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("continued-answers"), scaled(DEMO, "")) as running:
        yield running


@pytest.mark.parametrize("kind", ["text", "schema", "call"])
def test_continued_answers_are_those_that_were_not_cut(served: Served, kind: Kind) -> None:
    seen: Counter[str] = Counter()
    problems: list[str] = []

    def ask(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
        answer = http.post("/v1/chat/completions", json={"model": served.model, **body})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def cut_and_continue(number: int, case: Case) -> None:
        draw = random.Random(number)
        whole = ask(http, case.body)
        (choice,) = whole["choices"]
        text = case.text(choice["message"]).rstrip(BROKEN)
        if len(text) < 2:
            seen["empty"] += 1
            return
        for _ in range(CUTS[kind]):
            at = draw.randrange(1, len(text))
            begun = case.cut(choice["message"], at)
            asked = case.body | {"messages": [*case.body["messages"], begun], "continue_final_message": True}
            again = ask(http, asked)
            judge(number, case, whole, again, at)

    def judge(number: int, case: Case, whole: dict[str, Any], again: dict[str, Any], at: int) -> None:
        (choice,), (after,) = whole["choices"], again["choices"]
        # an answer that reached its length may end in a part of a character
        text, rest = (case.text(one["message"]).rstrip(BROKEN) for one in (choice, after))
        joined, uncut = text[:at] + rest, choice["token_ids"]
        kept = again["prompt_token_ids"][len(whole["prompt_token_ids"]) :]
        same_prompt = again["prompt_token_ids"][: len(whole["prompt_token_ids"])] == whole["prompt_token_ids"]
        same = same_prompt and kept == uncut[: len(kept)]
        ended = {choice["finish_reason"], after["finish_reason"]} <= {"stop", "tool_calls"}
        equal = joined == text if ended else joined.startswith(text) or text.startswith(joined)
        seen["cuts"] += 1
        seen["same_ids"] += same
        seen["equal"] += equal
        seen["equal_of_same_ids"] += same and equal
        where = (
            f"{kind} {number} at {at}: {text[max(0, at - 20) : at]!r} + {rest[:40]!r}, not {text[at:][:40]!r}"
        )
        if same and not equal:
            problems.append(f"differs: {where}")
        if BROKEN in joined and BROKEN not in text:
            problems.append(f"no valid text: {where}")
        if kind != "text" and after["finish_reason"] in ("stop", "tool_calls") and not _is_valid(joined):
            problems.append(f"does not fit: {where} ({joined!r})")

    headers = {"Authorization": f"Bearer {KEY}"}
    with (
        httpx.Client(base_url=served.url, headers=headers, timeout=120) as http,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        asked = cases(kind, ANSWERS[kind], MAX_TOKENS[kind])
        list(pool.map(lambda one: cut_and_continue(*one), enumerate(asked)))
    record(f"continued_answers_{kind}", model=served.model, problems=len(problems), **seen)
    assert problems == []
    assert seen["same_ids"] >= SAME_IDS[kind] * seen["cuts"], seen


def _is_valid(text: str) -> bool:
    try:
        return fits(text)
    except ValueError:
        return False
