"""Tests of all parts; see `docs/testing.md` for what each folder holds and how to run it."""

import os

import pytest
from hypothesis import HealthCheck, settings

# xdist gives its processes a terminal of 80 columns; tables are tested at the width that pipes get
os.environ.pop("COLUMNS", None)
# so that a failed `assert` in a helper shows its values
pytest.register_assert_rewrite("tests.kits")

from tests.kits.chaos.scale import full, scaled  # noqa: E402 (imported after it is registered)

# An example that takes long is a sign of a busy machine, not of a fault. Every run has the same examples, so
# that none fails by one that the next run lacks; a long run draws new ones.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not full,
    database=None,
    max_examples=scaled(100, 1000),
    print_blob=True,
)
settings.load_profile("any machine")
