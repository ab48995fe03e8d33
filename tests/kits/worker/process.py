"""Runs the worker as a separate process with the null engine."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path


@contextlib.asynccontextmanager
async def worker(nats_url: str, group: str, **settings: str) -> AsyncIterator[asyncio.subprocess.Process]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RYZ_")}
    given = {"NATS_URL": nats_url, "GROUP": group, "ENGINE": "null", "MODEL_NAME": "demo"} | settings
    env |= {f"RYZ_{name}": value for name, value in given.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.worker", env=env, stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
