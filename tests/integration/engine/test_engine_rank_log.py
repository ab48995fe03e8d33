"""Log lines of ranks appear in the leader's log in its format, with rank and process id."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from services.worker.rank_protocol.rank_messages import FrameKind, pack_frame
from services.worker.rank_protocol.starting.fork_messages import (
    MAX_PACKET_BYTES,
    Fork,
    Forked,
    ForkServerReport,
)
from shared.telemetry.logs.schema import problems_of
from tests.kits.engine.rank_options import rank_config

ROOT = Path(__file__).resolve().parents[3]
# a rank whose collectives fail with an unexpected exception
BROKEN = """
import os, signal, sys, time
from services.worker.engine.rank import fork_server, rank_process
def fail(config):
    if os.environ["FAILS_BY"] == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(60)
    raise RuntimeError("the moon is wrong")
rank_process.connect = fail
sys.exit(fork_server.main())
"""
CONFIG = rank_config(threads=1, collectives="shm")
# the same in a rank with an interpreter of its own, as `RYZ_RANK_START=spawn` starts it
SPAWNED = """
import sys
from services.worker.engine import __main__
from services.worker.engine.rank import rank_process
def fail(config):
    raise RuntimeError("the moon is wrong")
rank_process.connect = fail
sys.exit(__main__.main())
"""


def fail_by(what: str, form: str, until_reports: int) -> tuple[int, bytes, str]:
    """Lets a rank fail; returns its process id, what its leader got, and what was logged."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "FAILS_BY": what,
        "RYZ_INSTANCE_ID": "i1", "RYZ_GROUP": "g7", "RYZ_LOG_FORMAT": form,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", BROKEN, str(theirs.fileno()), str(os.getpid())],
        pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, env=environment, text=True,
    )  # fmt: skip
    theirs.close()
    leader, rank = socket.socketpair()
    with ours, leader:
        ours.settimeout(60)
        leader.settimeout(60)
        socket.send_fds(ours, [msgspec.msgpack.encode(Fork(1, 3, []))], [rank.fileno()])
        rank.close()
        forked = msgspec.msgpack.decode(ours.recv(MAX_PACKET_BYTES), type=ForkServerReport)
        assert isinstance(forked, Forked)
        leader.sendall(pack_frame(FrameKind.CONFIG, msgspec.structs.replace(CONFIG, rank=3)))
        report = leader.recv(65536)
        for _ in range(until_reports):
            ours.recv(MAX_PACKET_BYTES)
    _, text = process.communicate(timeout=60)
    return forked.pid, report, text


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_rank_that_fails_logs_its_trace_with_its_name(form: str) -> None:
    pid, report, text = fail_by("exception", form, 0)
    assert b"the moon is wrong" in report
    if form == "console":
        assert "a rank failed" in text
        assert "the moon is wrong" in text
        return
    (line,) = [json.loads(one) for one in text.splitlines()]
    assert problems_of(line) == []
    assert line["exception"][0]["exc_value"] == "the moon is wrong"
    wanted = {"event": "a rank failed", "level": "error", "service": "worker", "role": "rank", "rank": 3,
              "instance": "i1", "group": "g7", "pid": pid}  # fmt: skip
    assert wanted.items() <= line.items()


def test_the_stack_of_a_rank_that_a_signal_ended_is_a_line() -> None:
    pid, report, text = fail_by("signal", "json", 1)
    assert report == b""
    (line,) = [json.loads(one) for one in text.splitlines()]
    assert problems_of(line) == []
    wanted = {"event": "a rank was ended by a signal", "level": "error", "service": "worker", "role": "rank",
              "rank": 3, "pid": pid, "signal": "SIGSEGV"}  # fmt: skip
    assert wanted.items() <= line.items()
    assert any("in fail" in frame for frame in line["stack"])


def test_a_rank_of_its_own_interpreter_names_its_rank_and_group() -> None:
    leader, rank = socket.socketpair()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RYZ_LOG_FORMAT": "json"}
    for name in ("RYZ_INSTANCE_ID", "RYZ_GROUP"):  # as on another host, where neither is known
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", SPAWNED, str(rank.fileno()), str(os.getpid())],
        pass_fds=(rank.fileno(),), stderr=subprocess.PIPE, env=environment, text=True,
    )  # fmt: skip
    rank.close()
    config = msgspec.structs.replace(CONFIG, rank=2, group="g7", instance_id="i1")
    with leader:
        leader.sendall(pack_frame(FrameKind.CONFIG, config))
        _, text = process.communicate(timeout=60)
    (line,) = [json.loads(one) for one in text.splitlines()]
    assert problems_of(line) == []
    wanted = {"event": "a rank failed", "role": "rank", "rank": 2, "group": "g7", "instance": "i1"}
    assert wanted.items() <= line.items()
