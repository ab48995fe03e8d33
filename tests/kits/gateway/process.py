"""Runs the gateway as a separate process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.kits.waiting import PATIENCE_S


@asynccontextmanager
async def gateway_process(**settings: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environ = os.environ | {f"RYZ_{name.upper()}": value for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.gateway", env=environ, stderr=asyncio.subprocess.PIPE
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
