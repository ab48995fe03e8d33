"""Describes a running stack to other commands: one JSON file in the state directory.

The file lives as long as the stack. A pid alone proves nothing (numbers are used again), so the file also has
the supervisor's start time. A lock on the directory keeps two supervisors apart and dies with its holder.
"""

import fcntl
import json
import os
import shlex
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cli.console import fail
from cli.logs.lines import plain
from cli.stack.host.private import make_private_dir, make_state_dir, replace_private
from shared.address import redact
from shared.host.local_stack import STATE_DIR, STATE_FILE, ForeignFileError, read_own
from shared.host.own_paths import ForeignLinkError, walk

DEFAULT_DIR = STATE_DIR
SUPERVISOR = "supervisor"  # its log begins before it has locked the directory
CLOCK_SLACK_S = 2.0  # start times are computed from the boot time, which moves when the clock is set


@dataclass(slots=True)
class ServiceState:
    """One process of the stack.

    Attributes:
        model: The name of the model that it serves; empty: none.
    """

    name: str
    pid: int = 0
    ready: bool = False
    restarts: int = 0
    model: str = ""


@dataclass(slots=True)
class StackState:
    """A stack as its supervisor sees it.

    Attributes:
        model: The first of `models`.
        nats_url: The broker for callers outside.
        nats_urls: Our own broker by user.
        grpc_address: Where the gateway is reached by gRPC; empty: nowhere.
        stop_s: Limit on the time that its end takes, in seconds.
    """

    pid: int
    started_at: float
    url: str
    nats_url: str
    redis_url: str
    model: str
    ready: bool = False
    services: list[ServiceState] = field(default_factory=list)
    nats_urls: dict[str, str] = field(default_factory=dict)
    stop_s: float = 0.0
    kv_redis_url: str = ""
    grpc_address: str = ""
    models: list[str] = field(default_factory=list)

    def broker(self, user: str) -> str:
        """Return the broker's URL for a user; a given broker has one URL for all."""
        return self.nats_urls.get(user, self.nats_url)

    def public(self) -> dict[str, Any]:
        """Return the values without passwords."""
        urls = ("url", "nats_url", "redis_url", "kv_redis_url")
        shown = asdict(self) | {name: redact(getattr(self, name)) for name in urls}
        del shown["nats_urls"]
        return shown


class StateDir:
    """The directory of one stack: `up.json` while it runs, `logs/` also afterwards.

    Raises `CommandError` where another user's link would lead elsewhere.
    """

    def __init__(self, path: Path) -> None:
        self.path = _settle(path)
        self.logs = self.path / "logs"
        self._file = self.path / STATE_FILE
        self._lock: int | None = None

    def log(self, name: str) -> Path:
        """Return the log file of a service."""
        return self.logs / f"{name}.log"

    def put_aside(self, log: Path) -> None:
        """Keep the log of the previous stack, which may say why it ended."""
        with suppress(FileNotFoundError):
            log.replace(older_log(log))

    def put_logs_aside(self) -> None:
        """Keep the logs of all services of the previous stack."""
        for log in self.logs.glob("*.log"):
            if log != self.log(SUPERVISOR):
                self.put_aside(log)

    def make(self) -> None:
        """Make the directory; fail with the remedy when it cannot be made or written to."""
        try:
            make_state_dir(self.path)
            make_private_dir(self.logs)
            problem = (
                "" if os.access(self.path, os.W_OK) and os.access(self.logs, os.W_OK) else "not writable"
            )
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            fail(
                f"The state directory {self.path} cannot be used: {problem}. Name another with `--state-dir`."
            )

    def acquire(self) -> bool:
        """Make the directory and takes it for this process; False when another supervisor has it."""
        self.make()
        lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    def write(self, state: StackState) -> None:
        """Replace the file in one step, so that a reader never sees half of it."""
        replace_private(self._file, json.dumps(asdict(state), indent=1) + "\n")

    def release(self) -> None:
        """Remove the file and gives the directory back."""
        if self._lock is None:
            return
        self._file.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None

    def read(self) -> StackState | None:
        """Return the stack that runs now, if any; a file that a killed supervisor left does not count.

        Raises:
            CommandError: Another user wrote the file. Keys would be sent to its address, its process ended.
        """
        try:
            raw = json.loads(read_own(self._file))
            state = StackState(**{**raw, "services": [ServiceState(**one) for one in raw["services"]]})
        except ForeignFileError:
            fail(f"{self._file} is not this user's: run this as its owner, or name another `--state-dir`.")
        except (OSError, ValueError, TypeError, KeyError):
            return None
        began = start_time(state.pid)
        return state if began is not None and abs(began - state.started_at) < CLOCK_SLACK_S else None


def _settle(path: Path) -> Path:
    """Return the directory without links; an unreadable one is refused when it is used."""
    try:
        return walk(path)
    except ForeignLinkError as error:
        fail(
            f"The state directory {path} cannot be used: {error.strerror}. Remove that, or name another "
            "directory with `--state-dir`."
        )
    except OSError:
        return path.absolute()


def no_stack(path: Path, otherwise: str = "") -> str:
    """Return the sentence of a command that finds no stack in a state directory.

    Args:
        otherwise: What names another server, such as "`--url` or RYZ_URL another gateway".
    """
    return (
        f"No stack is up in {path}. `ryz up` starts one; `--state-dir` names another directory"
        f"{otherwise and f', {otherwise}'}."
    )


def state_dir_words(path: Path) -> str:
    """Return the option that names a state directory, behind a space; empty for the default directory."""
    return "" if is_default_dir(path) else f" --state-dir {shlex.quote(str(path))}"


def is_default_dir(path: Path) -> bool:
    """Return whether it is the default state directory of this folder."""
    return path in {DEFAULT_DIR, _settle(DEFAULT_DIR)}


def older_log(log: Path) -> Path:
    """Return the file that keeps the previous content of a log."""
    return log.with_suffix(".log.1")


def start_time(pid: int) -> float | None:
    """Return when a process began, in seconds since the epoch; None for one that has ended."""
    import psutil  # noqa: PLC0415 (keeps `ryz --help` quick)

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def log_tail(path: Path, lines: int = 15, max_bytes: int = 16_384) -> str:
    """Return the last lines of a log file for people; empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            return "\n".join(map(plain, file.read().decode(errors="replace").splitlines()[-lines:]))
    except OSError:
        return ""
