"""Runs the gateway as a separate process."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.kits.waiting import PATIENCE_S


@asynccontextmanager
async def gateway_process(
    constants: Mapping[str, Any] | None = None, /, **settings: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    environ = os.environ | {f"RYZ_{name.upper()}": value for name, value in settings.items()}
    command = ["-m", "services.gateway"]
    if constants:
        command = ["-m", "tests.kits.gateway.gateway_main", json.dumps(constants)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env=environ, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready(http: httpx.AsyncClient) -> None:
    """Waits until the gateway takes requests, whether or not there is a router that takes them."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                answer = await http.get("/ready")
                if answer.status_code == 200 or answer.headers.get("x-ryz-reason") == "no_router":
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
