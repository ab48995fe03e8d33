"""A shell that runs the commands of a page one after another."""

import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self
from uuid import uuid4


class Ended(NamedTuple):
    """How a command ended, and what it printed: all of stdout, then all of stderr, whichever came first."""

    status: int
    printed: str


class Shell:
    """A bash without the user's files; variables, jobs and the folder hold from command to command.

    Args:
        folder: Where it starts.
        env: All variables.
    """

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._read = 0  # bytes of stderr
        self._errors = os.memfd_create("stderr")
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str, limit_s: float) -> Ended:
        """Runs a command to its end; it reads nothing.

        Raises:
            TimeoutError: It did not end; the shell is killed.
        """
        bash, end = self._bash, f"end-{uuid4().hex}"
        assert bash.stdin is not None
        assert bash.stdout is not None
        timer = threading.Timer(limit_s, self._kill)
        timer.start()
        bash.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n%s %d\\n' {end} $?\n")
        bash.stdin.flush()
        printed: list[str] = []
        for line in bash.stdout:
            if line.startswith(end):
                timer.cancel()
                return Ended(int(line.split()[1]), "".join(printed) + self._new_errors())
            printed.append(line)
        timer.cancel()
        raise TimeoutError(
            f"{command}\ndid not end within {limit_s:g} s, or ended the shell: "
            f"{''.join(printed)}{self._new_errors()}"
        )

    def _new_errors(self) -> str:
        """What came on stderr since the last call."""
        data = os.pread(self._errors, 2**20, self._read)
        self._read += len(data)
        return data.decode(errors="replace")

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._bash.wait()
        os.close(self._errors)
        for stream in (self._bash.stdin, self._bash.stdout):
            if stream:
                stream.close()
