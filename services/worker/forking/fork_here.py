"""Starts the fork server of a group by a fork of the leader, where that has imported torch already.

That is so in a leader that was itself forked from a process with the imports (`ryz up`). The fork comes
before the leader has any thread; later starts take an interpreter of their own.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from services.worker.forking.forked_process import ForkedProcess, run_forked, run_module
from shared.host.thread_counts import thread_ids


def can_fork(module: str) -> bool:
    """Whether the module is imported, and this process has one thread."""
    return module in sys.modules and len(thread_ids(os.getpid())) == 1


def fork_module(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], own: Sequence[int]
) -> ForkedProcess:
    """Fork a process that runs the `main` of an imported module.

    Args:
        arguments: What would follow the module's name on a command line.
        environment: Replaces that of this process.
        own: Descriptors of this process that the new one closes.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        run_forked(lambda: _run(module, arguments, environment, own))
    return ForkedProcess(pid)


def _run(module: str, arguments: Sequence[str], environment: Mapping[str, str], own: Sequence[int]) -> int:
    os.setpgid(0, 0)
    for descriptor in own:
        os.close(descriptor)
    os.dup2(2, 1)
    os.environ.clear()
    os.environ.update(environment)
    return run_module(module, arguments)
