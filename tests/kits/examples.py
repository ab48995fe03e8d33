"""Runs the unchanged examples as processes."""

import asyncio
import os
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


async def run_example(
    name: str,
    *args: str,
    cwd: Path = EXAMPLES.parent,
    env: dict[str, str] | None = None,
    limit_s: float = 20.0,
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
    out, err = await asyncio.wait_for(process.communicate(), limit_s)
    return process.returncode, out.decode(), err.decode()
