"""Runs the gateway as a separate process."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.kits.programs.launch import AsyncProgram, async_program
from tests.kits.waiting import PATIENCE_S


@asynccontextmanager
async def gateway_process(
    constants: Mapping[str, Any] | None = None, /, **settings: str
) -> AsyncIterator[AsyncProgram]:
    env = os.environ | {f"RYZ_{name.upper()}": value for name, value in settings.items()}
    command = ["services.gateway"]
    if constants:
        command = ["tests.kits.gateway.gateway_main", json.dumps(constants)]
    async with async_program(*command, env=env) as process:
        yield process


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
