"""The whole set: the hand-written cases, and random ones until there are 300."""

from functools import cache

from tests.kits.schemas.container_cases import CONTAINERS
from tests.kits.schemas.random_cases import random_case
from tests.kits.schemas.scalar_cases import SCALARS
from tests.kits.schemas.schema_case import SchemaCase

NUM_CASES = 300


@cache
def corpus() -> tuple[SchemaCase, ...]:
    """Returns the 300 cases, the same in every run."""
    cases = [
        SchemaCase(f"{keyword}-{number}", schema, tuple(valid), tuple(invalid))
        for keyword, rows in {**SCALARS, **CONTAINERS}.items()
        for number, (schema, valid, invalid) in enumerate(rows)
    ]
    cases += [random_case(seed) for seed in range(NUM_CASES - len(cases))]
    return tuple(cases)
