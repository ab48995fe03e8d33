"""What the kernel shows as the environment of a forked service, with real processes."""

import os
import subprocess
import sys

import psutil
import pytest

from cli.stack.forking.shown_environment import ROOM

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other kernels show no environment like this")

SCRIPT = """
import os, sys
from cli.stack.forking.shown_environment import show_environment
given = dict(pair.split("=", 1) for pair in sys.argv[1:])
os.environ.clear()
os.environ.update(given)
show_environment(given)
print(os.environ == given, os.popen("echo $RYZ_MODEL").read().strip(), flush=True)
sys.stdin.read()
"""


def shown(given: dict[str, str], before: dict[str, str]) -> dict[str, str]:
    """The environment that is shown of a process which had another one before."""
    command = [sys.executable, "-P", "-c", SCRIPT, *(f"{name}={value}" for name, value in given.items())]
    with subprocess.Popen(
        command, env=before, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["True", given["RYZ_MODEL"]], "it has what it was given"
        found = psutil.Process(process.pid).environ()
        process.stdin.close()
    assert process.returncode == 0
    return found


def test_it_is_that_of_the_service_and_not_of_the_fork_server() -> None:
    given = {"PATH": os.environ["PATH"], "RYZ_MODEL": "/models/größe", "RYZ_GROUP": "g1"}
    before = {**os.environ, **ROOM, "RYZ_MODEL": "/models/other", "RYZ_SECRET": "of the server"}
    assert shown(given, before) == given


def test_settings_come_first_where_there_is_no_room() -> None:
    given = {"PATH": os.environ["PATH"], "LONG": "x" * 4000, "RYZ_MODEL": "/models/one"}
    found = shown(given, {"PATH": os.environ["PATH"], "PADDING": "." * 100})
    assert found["RYZ_MODEL"] == "/models/one"
    assert "LONG" not in found
