"""Processes that wait for their order, each test in an interpreter of its own: one without threads."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from shared.host.own_python import module_environment
from tests.kits.waiting import wait_for

BEGIN = """
import json, os, signal, socket, sys, threading, types
from services.worker.forking.early_fork import fork_early

def main():
    assert os.read(int(sys.argv[1]), 9) == b"given "
    raise SystemExit(7)

sys.modules["target"] = types.SimpleNamespace(main=main)
first = os.getpid()
fork = fork_early("target")
"""


def run(program: str) -> Any:
    """What the program prints as JSON."""
    environ = module_environment(os.environ)
    command = [sys.executable, "-c", BEGIN + program]
    return json.loads(subprocess.run(command, env=environ, capture_output=True, check=True).stdout)


def test_it_runs_main_with_what_it_is_given_and_its_end_is_seen() -> None:
    said = run("""
reading, writing = os.pipe()
os.write(writing, b"given ")
process = fork.order([reading], ["word", "1"])
code = process.wait(60)
print(json.dumps([code, process.poll(), process.returncode, process.pid != os.getpid()]))
""")
    assert said == [7, 7, 7, True]


def test_descriptors_come_first_in_its_arguments(tmp_path: Path) -> None:
    file = tmp_path / "said"
    said = run(f"""
def main():
    title = open("/proc/self/cmdline").read().strip(chr(0))
    text = json.dumps([len(sys.argv), sys.argv[3], os.read(int(sys.argv[1]), 9).decode(), title])
    os.write(int(sys.argv[2]), text.encode())
sys.modules["target"].main = main
fork.close()
fork = fork_early("target")
reading, writing = os.pipe()
os.write(writing, b"given")
with open({str(file)!r}, "wb") as out:
    process = fork.order([reading, out.fileno()], ["word"])
print(json.dumps(process.wait(60)))
""")
    count, word, read, title = json.loads(file.read_text())
    assert (said, count, word, read) == (0, 4, "word", "given")
    assert title.startswith(f"{sys.executable} -P -m target ")


def test_one_without_an_order_ends_with_close() -> None:
    assert (
        run("""
pid = int(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read())
fork.close()
fork.close()
print(json.dumps(os.path.exists(f"/proc/{pid}")))
""")
        is False
    )


def test_one_without_an_order_ends_with_its_parent() -> None:
    program = (
        BEGIN
        + """
print(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env=module_environment(os.environ), capture_output=True, check=False
    )
    pid = int(ended.stdout)
    wait_for(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "it ended"
    )


def test_a_process_that_is_gone_takes_no_order() -> None:
    assert run("""
child = int(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read())
os.kill(child, signal.SIGKILL)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
try:
    fork.order([], ["a", "b", "c"])
except OSError as error:
    print(json.dumps([type(error).__name__, os.path.exists(f"/proc/{child}")]))
""") == ["BrokenPipeError", False]


def test_an_error_while_it_waits_ends_it() -> None:
    """It must not go on with the code of its parent, which would be a second leader."""
    said = run("""
fork.close()

def fail(*_):
    raise OSError("no descriptors")

socket.recv_fds = fail
fork = fork_early("target")
child = int(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read() or 0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0
print(json.dumps([os.getpid() == first, code]))
""")
    assert said == [True, 70]


def test_none_is_forked_beside_threads_or_without_the_module() -> None:
    assert run("""
waits = threading.Event()
threading.Thread(target=waits.wait).start()
beside = fork_early("target") is None
waits.set()
print(json.dumps([beside, fork_early("no.such.module") is None]))
""") == [True, True]
