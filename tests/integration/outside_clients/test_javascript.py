"""The examples in JavaScript, with the `nats` package of npm, against services with the null engine."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kits.examples import run_example
from tests.kits.gateway.outside_stack import OutsideStack, outside_stack
from tests.kits.servers import NatsServer
from tests.kits.waiting import PATIENCE_S

EXAMPLES = Path(__file__).parents[3] / "examples" / "javascript"
INSTALL_S = 40
LIMIT_S = 240.0  # of all cases together: a case takes a second, and up to a minute on a busy machine
DISCOVER = """
import { connect } from "nats";
const url = new URL(process.argv[2]);
const nc = await connect({ servers: url.host, user: url.username, pass: url.password,
                           inboxPrefix: `_INBOX.${url.username}` });
const client = nc.services.client({ strategy: "timer", maxWait: 300 });
const all = async (found) => {
  const list = [];
  for await (const one of await found) list.push(one);
  return list;
};
const told = { ping: await all(client.ping()), info: await all(client.info("ryz-gateway")),
               stats: await all(client.stats("ryz-router")) };
console.log(JSON.stringify(told));
await nc.close();
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples and their packages."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("javascript")
    for path in EXAMPLES.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    command = ["npm", "install", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install the packages within {INSTALL_S} s")
    if done.returncode:
        pytest.skip(f"npm cannot install the packages: {done.stderr[-200:]}")
    (folder / "discover.mjs").write_text(DISCOVER)
    return folder


async def run(scripts: Path, name: str, *args: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        "node", name, *args, cwd=scripts, env={"PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    return process.returncode, out.decode(), err.decode()


async def test_javascript_asks_streams_and_discovers(scripts: Path, tmp_path: Path) -> None:
    async with outside_stack(tmp_path) as stack:
        url = stack.world.broker.url("service-a")
        for name in ("complete.mjs", "stream.mjs"):
            code, out, err = await run(scripts, name, url, "tenant-a", "demo", "Hello!")
            assert (code, len(out.strip("\n"))) == (0, 64), (name, out, err)
            code, _, err = await run(scripts, name, url, "tenant-a", "no/such", "Hello!")
            assert (code, "model_not_found" in err) == (1, True), (name, err)
        await discovered(stack, scripts)


@pytest.mark.timeout(LIMIT_S + 60)
async def test_the_stream_follows_every_rule(scripts: Path, tmp_path: Path) -> None:
    broker = NatsServer(tmp_path)
    broker.start()
    try:
        command = ("node", str(scripts / "stream.mjs"), "{url}", "any", "{model}", "hello")
        code, out, err = await run_example(
            "conformance.py", "--nats-url", broker.url, "--", *command, limit_s=LIMIT_S
        )
    finally:
        broker.stop()
    assert code == 0, out + err


async def discovered(stack: OutsideStack, scripts: Path) -> None:
    """Operators find the services with NATS's own client; services outside find none."""
    reported: dict[str, list[Any]] = {"ping": [], "info": [], "stats": []}
    async with asyncio.timeout(PATIENCE_S):
        # the script waits 0.3 s for answers, which come later on a busy machine
        while {"ryz-router", "ryz-gateway"} - {one["name"] for one in reported["ping"]} or not (
            reported["info"] and reported["stats"]
        ):
            code, out, err = await run(scripts, "discover.mjs", stack.world.broker.url("cli"))
            assert code == 0, err
            reported = json.loads(out)
    (gateway,) = reported["info"]
    served = {one["subject"]: one for one in gateway["endpoints"]}
    assert served["ryz.v1.tenant.*.*.complete.*"]["queue_group"] == "gateway"
    assert gateway["metadata"]["state"] == "ready"
    (router,) = reported["stats"]
    (generate,) = [one for one in router["endpoints"] if one["subject"] == "ryz.v1.tenant.*.*.generate.*"]
    assert generate["num_requests"] >= 2
    assert generate["processing_time"] >= generate["average_processing_time"] > 0
    code, out, err = await run(scripts, "discover.mjs", stack.world.broker.url("service-a"))
    assert code != 0 or json.loads(out)["ping"] == []
