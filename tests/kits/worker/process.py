"""Runs the worker as a separate process with the null engine."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.kits.programs.launch import AsyncProgram, async_program


@asynccontextmanager
async def worker(nats_url: str, group: str, **settings: str) -> AsyncIterator[AsyncProgram]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RYZ_")}
    given = {"NATS_URL": nats_url, "GROUP": group, "ENGINE": "null", "MODEL_NAME": "demo"} | settings
    env |= {f"RYZ_{name}": value for name, value in given.items()}
    env["OPENBLAS_NUM_THREADS"] = "1"  # as in images
    async with async_program("services.worker", env=env) as process:
        yield process
