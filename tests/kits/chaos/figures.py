"""Writes the figures of chaos tests, one object for each test, to the file that `RYZ_CHAOS_FIGURES` names.

Failed tests write theirs as well.
"""

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.lib.machine import SERVING_PACKAGES, commit, machine


def record(test: str, **figures: Any) -> None:
    """Adds the figures of a test to the file and prints them."""
    print(f"{test}: {figures}", flush=True)
    path = Path(os.environ.get("RYZ_CHAOS_FIGURES", ""))
    if not path.name:
        return
    figures_of = json.loads(path.read_text()) if path.exists() else {"machine": machine(SERVING_PACKAGES)}
    figures_of[test] = {"commit": commit()} | figures  # figures in one file may come from several commits
    path.write_text(json.dumps(figures_of, indent=1) + "\n")
