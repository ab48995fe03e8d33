"""The processes of vLLM, as the kernel has them."""

import os
from pathlib import Path

from services.worker.orchestrator.rank_process_handle import runs
from tests.kits.guests.vllm_guest import Watched


def pid_of(watched: Watched) -> int:
    return int(str(watched.guest.status()["pid"]))


def group_of(pid: int) -> list[int]:
    """The processes of a process group that run."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getpgid(int(name)) == pid and runs(int(name)):
                found.append(int(name))
        except ProcessLookupError:
            continue
    return found


def core_of(pid: int) -> int:
    """The process that computes: vLLM gives it a name."""
    lines = {one: Path(f"/proc/{one}/cmdline").read_bytes() for one in group_of(pid)}
    named = [one for one, line in lines.items() if b"EngineCore" in line]
    return (named or [one for one, line in lines.items() if b"spawn_main" in line])[0]


def guard_of(pid: int) -> int:
    """The process that vLLM's process has forked to end all others."""
    own = Path(f"/proc/{pid}/cmdline").read_bytes()
    lines = {one: Path(f"/proc/{one}/cmdline").read_bytes() for one in group_of(pid)}
    return next(one for one, line in lines.items() if line == own and one != pid)
