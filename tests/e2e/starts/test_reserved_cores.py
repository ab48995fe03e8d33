"""A model with a core of its own: its processes run there, and no other process of the stack does."""

import os
import re
from pathlib import Path

import psutil
import pytest

from tests.kits.e2e.stack import Stack, ryz

MODELS = """
[[models]]
name = "calm"
source = "demo"
cores = 1

[[models]]
name = "busy"
source = "demo"
groups = 1
"""


def cores_of(pid: int) -> set[tuple[int, ...]]:
    """The cores that the threads of a process may use."""
    return {tuple(sorted(os.sched_getaffinity(int(thread)))) for thread in os.listdir(f"/proc/{pid}/task")}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_nothing_else_runs_on_the_cores_of_a_group(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(MODELS)
    shown = ryz("models", "plan", "models.toml", cwd=tmp_path)
    assert re.search(r"calm: a group has cores of its own: \d+\.", shown.stdout)
    with Stack(tmp_path, "--models", "models.toml", calm=False) as stack:
        stack.await_ready()
        usable = tuple(sorted(os.sched_getaffinity(0)))
        own, others = usable[-1:], usable[:-1]
        leader = stack.pid_of("worker-g0")
        group = [leader, *(child.pid for child in psutil.Process(leader).children(recursive=True))]
        supervisor = psutil.Process(stack.state.pid)
        rest = {one.pid for one in [supervisor, *supervisor.children(recursive=True)]} - set(group)
        assert len(group) > 1
        assert set().union(*map(cores_of, group)) == {own}
        assert set().union(*map(cores_of, rest)) == {others}
        assert stack.end() == 0
