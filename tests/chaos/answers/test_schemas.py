"""Answers under schemas fit them: a model at temperature 1 answers the set, and `jsonschema` judges.

An answer that reached its length is cut, so only its beginning could be judged; it is counted and left out.
"""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import httpx
import pytest

from cli.models.catalogue import DEMO
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.clients.served import KEY, Served, serving
from tests.kits.schemas.corpus import corpus
from tests.kits.schemas.schema_case import SchemaCase, validator

pytestmark = pytest.mark.timeout(scaled(300, 7200))
NUM_ANSWERS = scaled(12, 1000)  # that ended, at the full length
AT_ONCE = 8
MAX_TOKENS = scaled(60, 200)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("schema-answers"), scaled(DEMO, "")) as running:
        yield running


def test_every_answer_under_a_schema_fits_it(served: Served) -> None:
    seen: Counter[str] = Counter()
    problems: list[str] = []
    cases = [case for case in corpus() if isinstance(case.schema, dict)]

    def ask(number: int) -> None:
        case = cases[number % len(cases)]
        form = {"name": "answer", "schema": case.schema, "strict": True}
        body: dict[str, Any] = {
            "model": served.model,
            "messages": [{"role": "user", "content": "Give an example as JSON, as short as you can."}],
            "response_format": {"type": "json_schema", "json_schema": form},
            "temperature": 1,
            "seed": number,
            "max_tokens": MAX_TOKENS,
        }
        answer = http.post("/v1/chat/completions", json=body)
        if answer.status_code == 400 and "schema" in answer.text:
            seen["refused"] += 1
            return
        assert answer.status_code == 200, f"{case.name}: {answer.text}"
        (choice,) = answer.json()["choices"]
        seen[choice["finish_reason"]] += 1
        if choice["finish_reason"] == "stop" and not _fits(case, choice["message"]["content"]):
            problems.append(f"{case.name}, seed {number}: {choice['message']['content']!r}")

    headers = {"Authorization": f"Bearer {KEY}"}
    with (
        httpx.Client(base_url=served.url, headers=headers, timeout=60) as http,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        first = 0
        while seen["stop"] < NUM_ANSWERS and first < 4 * NUM_ANSWERS:
            list(pool.map(ask, range(first, first + 4 * AT_ONCE)))
            first += 4 * AT_ONCE
    record("schema_answers", model=served.model, invalid=len(problems), **seen)
    assert problems == []
    assert seen["stop"] >= NUM_ANSWERS / 2, seen


def _fits(case: SchemaCase, text: str) -> bool:
    schema = json.loads(json.dumps(case.schema), parse_float=Decimal)
    try:
        return bool(validator(schema).is_valid(json.loads(text, parse_float=Decimal)))
    except ValueError:
        return False
