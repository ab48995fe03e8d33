"""What chaos tests have counted, one object for each test, in the file that `RYZ_CHAOS_FIGURES` names.

Whatever the outcome was, so that a run that failed can be read, too.
"""

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.lib.machine import SERVING_PACKAGES, commit, machine

_PATH = os.environ.get("RYZ_CHAOS_FIGURES", "")


def record(test: str, **figures: Any) -> None:
    """Keeps what a test has seen, beside what others have, and prints it."""
    print(f"{test}: {figures}", flush=True)
    if not _PATH:
        return
    path = Path(_PATH)
    told = json.loads(path.read_text()) if path.exists() else {"machine": machine(SERVING_PACKAGES)}
    told[test] = {"commit": commit()} | figures  # other tests may have run at other ones
    path.write_text(json.dumps(told, indent=1) + "\n")
