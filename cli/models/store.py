"""The models directory: where each model lies, the lock of each, and how a finished one is moved into it.

A model that is being pulled lies beside its place in `.NAME.part`, and a pull that was cut goes on with that.
It is moved to its place in one step when it is whole and checked.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cli.console import fail
from cli.models.records import ModelRecord, read_record, record_path, write_record
from cli.stack.host.ownership import require_own_path

MODELS_DIR = "RYZ_MODELS_DIR"
LOCK_WAIT_S = 4 * 3600.0  # for a pull of the same model; a large one takes that long
SPARE_BYTES = 64 * 2**20  # of the disk, which a pull leaves free


def models_dir() -> Path:
    """Return the models directory: as `RYZ_MODELS_DIR` says, else in the user's cache directory."""
    given = os.environ.get(MODELS_DIR, "")
    if given:
        return Path(given).expanduser().absolute()
    from platformdirs import user_cache_path  # noqa: PLC0415 (keeps `ryz --help` quick)

    return user_cache_path("ryzanstein", appauthor=False) / "models"


def packed_dir() -> Path:
    """Return the directory of packed weights, which all groups of this machine map."""
    return models_dir() / ".packed"


def make_directory(target: Path) -> None:
    """Make the directory of a model, for this user only; fail with the remedy if that cannot be done."""
    try:
        require_own_path(target.parent)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise PermissionError(0, "not writable")
    except OSError as error:
        fail(
            f"The models directory {models_dir()} cannot be used: {error.strerror or error}. "
            f"Name another one with {MODELS_DIR}."
        )


def staging_dir(target: Path) -> Path:
    """Return, and make, the directory in which a model is put together."""
    path = target.with_name(f".{target.name}.part")
    path.mkdir(exist_ok=True, mode=0o700)
    return path


def finish(staged: Path, target: Path, record: ModelRecord) -> None:
    """Move a checked file or directory to its place, and write its record.

    Args:
        staged: A file in the staging directory, or that directory itself.
        target: Where it goes; what is there is replaced.
        record: Its record, with the paths that the files will have.
    """
    _to_disk(staged)
    record_path(target).unlink(missing_ok=True)  # of what is replaced
    if target.is_dir():
        shutil.rmtree(target)
    staged.replace(target)
    write_record(target, record)
    shutil.rmtree(target.with_name(f".{target.name}.part"), ignore_errors=True)
    _to_disk(target.parent, deep=False)


def discard(target: Path, *, keep_lock: bool = False) -> int:
    """Remove a model with its record and what a cut pull left; return the bytes that it had."""
    staged = target.with_name(f".{target.name}.part")
    freed = 0
    record_path(target).unlink(missing_ok=True)
    for path in (target, staged):
        freed += size_of(path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if keep_lock:
        return freed
    target.with_name(f".{target.name}.lock").unlink(missing_ok=True)
    for folder in target.parents:
        if folder == models_dir():
            break
        with suppress(OSError):  # not empty
            folder.rmdir()
    return freed


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a directory from which others may remove some."""
    if not path.is_dir():
        return path.stat().st_size if path.exists() else 0
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(folder, name).lstat().st_size
    return total


@contextmanager
def locked(target: Path, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock of a model, and give its descriptor: a child that inherits it holds the lock, too.

    Args:
        waiting: Called once when another process has the lock.
    """
    lock, announced = _open_lock(target), False
    give_up_at = time.monotonic() + LOCK_WAIT_S
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_nlink:
                    break
                os.close(lock)  # `discard` has removed this file
                lock = _open_lock(target)
                continue
            if time.monotonic() > give_up_at:
                fail(f"Another process has been at {target.name} for {LOCK_WAIT_S / 3600:g} hours; end it.")
            if not announced:
                waiting()
                announced = True
            time.sleep(0.1)
        yield lock
    finally:
        os.close(lock)


def _open_lock(target: Path) -> int:
    name = target.with_name(f".{target.name}.lock")
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def require_space(target: Path, needed: int) -> None:
    """Fail when the disk has less than so many bytes free, and something to spare."""
    free = shutil.disk_usage(target.parent).free
    if free < needed + SPARE_BYTES:
        fail(
            f"{target.name} needs {in_bytes(needed)} more on the disk, and {target.parent} has "
            f"{in_bytes(free)} free. Make room, or name another directory with {MODELS_DIR}."
        )


def stored_models() -> list[tuple[Path, ModelRecord]]:
    """Return all pulled models with their records, sorted by name."""
    found = list[tuple[Path, ModelRecord]]()
    for path in models_dir().rglob(".*.json"):
        target = path.with_name(path.name[1 : -len(".json")])
        record = read_record(target)
        if record is not None and target.exists():
            found.append((target, record))
    return sorted(found, key=lambda pair: pair[1].name)


def leftovers() -> list[str]:
    """Say what the models directory has besides models: packed weights, and pulls that were cut."""
    lines = []
    packed = Path(os.environ.get("RYZ_PACKED_DIR") or packed_dir())
    if size := size_of(packed):
        lines.append(
            f"Packed weights: {in_bytes(size)} in {packed}. They may be deleted at any time; "
            "starts make them again."
        )
    for staged in sorted(models_dir().rglob(".*.part")):
        lines.append(
            f"A pull was cut: {in_bytes(size_of(staged))} in {staged}. "
            "`ryz models pull` with its name goes on, `ryz models remove` removes it."
        )
    return lines


def in_bytes(count: int) -> str:
    """Say a number of bytes as the progress bar does."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _to_disk(target: Path, *, deep: bool = True) -> None:
    """Write the content of a file or directory to the disk, so that a rename never shows half of it."""
    for path in [*(target.rglob("*") if deep and target.is_dir() else ()), target]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
