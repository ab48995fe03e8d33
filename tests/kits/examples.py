"""Runs the unchanged examples as processes."""

import asyncio
import os
import sys
from pathlib import Path

from tests.kits.waiting import PATIENCE_S

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


async def run_example(
    name: str,
    *args: str,
    cwd: Path = EXAMPLES.parent,
    env: dict[str, str] | None = None,
    limit_s: float = PATIENCE_S,
) -> tuple[int | None, str, str]:
    inherited = {key: value for key, value in os.environ.items() if key != "RYZ_NATS_URL"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        *args,
        cwd=cwd,
        env={**inherited, "RYZ_MODEL_NAME": "demo", **(env or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), limit_s)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode, out.decode(), err.decode()
