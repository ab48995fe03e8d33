"""Forked services that end before the supervisor has noted that they run, as one with a wrong setting may."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared.host.own_python import module_environment
from tests.kits.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors of processes are Linux's")

TRIES = 20
SUPERVISOR = """
import asyncio, json, os, sys
from pathlib import Path
from cli.stack.forking.messages import ForkService
from cli.stack.forking.servers import ForkServers

def ended(pid):
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

async def main():
    folder, tries = Path(sys.argv[1]), int(sys.argv[2])
    servers = ForkServers({"one": ["ends_at_once"]}, lambda name: folder / name, print)
    servers.collect_others(tuple)
    assert await servers.is_ready("one")
    codes = []
    for _ in range(tries):
        with open(os.devnull, "wb") as log:
            request = ForkService("one", "one", "ends_at_once", dict(os.environ), False)
            process = await servers.fork("one", request, [log.fileno()])
        while not ended(process.pid):
            os.sched_yield()
        await asyncio.sleep(0)  # the signal of its end is handled
        codes.append(await asyncio.wait_for(process.wait(), float(sys.argv[3])))
    servers.close()
    print(json.dumps(codes))

asyncio.run(main())
"""


KILLED = """
import asyncio, json, os, signal, sys
from pathlib import Path
from cli.stack.forking.messages import ForkService
from cli.stack.forking.servers import ForkServers

async def main():
    folder = Path(sys.argv[1])
    servers = ForkServers({"one": ["with_a_child"]}, lambda name: folder / name, print)
    servers.collect_others(tuple)
    assert await servers.is_ready("one")
    with open(os.devnull, "wb") as log:
        request = ForkService("one", "one", "with_a_child", dict(os.environ), False)
        process = await servers.fork("one", request, [log.fileno()])
    while not (folder / "child").exists():
        await asyncio.sleep(0.01)
    child = int((folder / "child").read_text())
    process.send_signal(signal.SIGKILL)
    await process.wait()
    servers.close()
    assert Path(f"/proc/{child}").exists()
    await servers.await_orphans()
    print(json.dumps(Path(f"/proc/{child}").exists()))

asyncio.run(main())
"""
WITH_A_CHILD = """
import os, pathlib, subprocess, time

def main():
    child = subprocess.Popen(["sleep", "0.5"], process_group=0)
    path = pathlib.Path({folder!r}, "child")
    path.with_suffix(".new").write_text(str(child.pid))
    path.with_suffix(".new").rename(path)
    time.sleep(1000)
"""


def test_the_end_waits_for_what_a_killed_service_has_left_behind(tmp_path: Path) -> None:
    (tmp_path / "with_a_child.py").write_text(WITH_A_CHILD.format(folder=str(tmp_path)))
    environ = module_environment(os.environ | {"PYTHONPATH": str(tmp_path)})
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) is False


def test_their_exit_codes_are_seen(tmp_path: Path) -> None:
    (tmp_path / "ends_at_once.py").write_text("def main(): raise SystemExit(3)\n")
    environ = module_environment(os.environ | {"PYTHONPATH": str(tmp_path)})
    command = [sys.executable, "-c", SUPERVISOR, str(tmp_path), str(TRIES), str(PATIENCE_S)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [3] * TRIES
