"""Runs the cases of one client library and prints how each ended, a JSON object a line.

It runs in an environment that has the client library and nothing of this project.
"""

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
    os.environ.setdefault(name, "none")

URL, MODEL = sys.argv[1], sys.argv[2]
API = f"{URL}/v1"
QUESTION = "Name a fruit."


def run_cases(*cases: Callable[[], Any]) -> None:
    """Run each case, a function or a coroutine function named after what it tries."""
    for case in cases:
        try:
            result = case()
            if inspect.iscoroutine(result):
                asyncio.run(result)
            line = {"case": case.__name__, "ok": True}
        except Exception as error:
            traceback.print_exc()
            line = {"case": case.__name__, "ok": False, "error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(line), flush=True)
