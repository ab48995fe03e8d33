"""`ryz chat` prints the whole answer and nothing else if its gateway is killed during the answer."""

import os
import signal
import subprocess
from pathlib import Path

from tests.kits.e2e.stack import RYZ, START_S, Stack
from tests.kits.waiting import wait_for

ASK = ("chat", "--once", "Tell me about Python.", "--temperature", "0", "--max-tokens", "300")


def ask(stack: Stack) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*RYZ, *ASK],
        cwd=stack.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_an_answer_outlives_its_gateway(tmp_path: Path) -> None:
    env = {"RYZ_NULL_STEP_DELAY_MS": "20"}
    with Stack(tmp_path, "--engine", "null", env=env) as stack:
        stack.await_ready()
        whole, complaint = ask(stack).communicate(timeout=START_S)
        assert complaint == b""
        assert len(whole) > 100
        with ask(stack) as chat:
            assert chat.stdout is not None
            assert chat.stderr is not None
            begun = os.read(chat.stdout.fileno(), 4)  # the answer has begun and most of it is missing
            gateway = stack.pid_of("gateway")
            os.kill(gateway, signal.SIGKILL)
            rest, complaint = chat.communicate(timeout=START_S)
        assert (chat.returncode, complaint, begun + rest) == (0, b"", whole)
        wait_for(lambda: stack.pid_of("gateway") != gateway, "the gateway is started again")
        assert stack.end() == 0
