"""Runs the gateway as a separate process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx


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
    async with asyncio.timeout(20):
        while True:
            try:
                if (await http.get("/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
