"""What the leader can ask of a rank's process, however it was started."""

import signal
import subprocess
from typing import Protocol

STILL_RUNNING = "still running"


class Child(Protocol):
    """A process. `pid` is 0 as long as nobody knows it."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        ...

    def kill(self) -> None:
        """Ends it now; does nothing when it has ended."""
        ...

    def describe_end(self) -> str:
        """`killed by SIGKILL`, `exit code 1`, or `still running`."""
        ...


class SpawnedChild:
    """A child of the leader itself."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self.poll = process.poll
        self.kill = process.kill

    def describe_end(self) -> str:
        """See `Child`."""
        code = self.poll()
        return STILL_RUNNING if code is None else exit_text(code)


def exit_text(code: int) -> str:
    """An exit code in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
