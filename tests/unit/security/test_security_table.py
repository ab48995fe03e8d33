"""The tables of attacks in docs/security.md name tests that exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs" / "security.md").read_text()
NAMED = sorted(
    set(re.findall(r"`((?:unit|integration|contract|e2e|chaos)/[\w/]*test_\w+\.py)(?:::(test_\w+))?`", PAGE))
)
OWASP = [*(f"API{index}" for index in range(1, 11)), *(f"LLM{index:02}" for index in range(1, 11))]


def test_the_tables_name_tests() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_what_is_named_exists(file: str, test: str) -> None:
    source = (TESTS / file).read_text()
    assert not test or re.search(rf"^(async )?def {test}\(", source, re.M), f"{file} has no {test}"


@pytest.mark.parametrize("risk", OWASP)
def test_every_risk_has_a_row(risk: str) -> None:
    assert re.search(rf"^\| {risk} ", PAGE, re.M)


@pytest.mark.parametrize(
    "number",
    [
        "CVE-2025-48956",
        "CVE-2025-32444",
        "CVE-2025-47277",
        "CVE-2026-22778",
        "CVE-2026-3059",
        "CVE-2026-27940",
    ],
)
def test_the_best_known_holes_are_in_it(number: str) -> None:
    assert number in PAGE
