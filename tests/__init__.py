"""Tests of all parts; see `docs/testing.md` for what each folder holds and how to run it."""

import os

import pytest
from hypothesis import HealthCheck, settings

# xdist gives its processes a terminal of 80 columns; tables are tested at the width that pipes get
os.environ.pop("COLUMNS", None)
# so that a failed `assert` in a helper shows its values
pytest.register_assert_rewrite("tests.kits")
# an example that takes long is a sign of a busy machine, not of a fault
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
