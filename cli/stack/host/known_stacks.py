"""Remembers, for this user, which folders have a stack in their default state directory.

So commands find the one that is up from any folder. A stack with a `--state-dir` of its own is not recorded:
commands are given that option, too.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

from cli.stack.host.ownership import require_own_path
from cli.stack.host.private import replace_private
from shared.host.local_stack import ForeignFileError, read_own


def remember_stack(state_dir: Path) -> None:
    """Record a stack that starts.

    Raises:
        OSError: It cannot be written; the stack is found in its own folder only.
    """
    folder = _folder()
    require_own_path(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for other in recorded_stacks():
        if not other.is_dir():
            forget_stack(other)
    replace_private(_entry(state_dir), f"{state_dir}\n")


def forget_stack(state_dir: Path) -> None:
    """Remove the record of a stack that ends."""
    with suppress(OSError):
        _entry(state_dir).unlink(missing_ok=True)


def recorded_stacks() -> list[Path]:
    """Return the state directories on record; a stack that was killed has left its record."""
    found = list[Path]()
    with suppress(OSError):
        for entry in sorted(_folder().iterdir()):
            if entry.suffix == ".path":
                with suppress(ForeignFileError, OSError, ValueError):
                    found.append(Path(read_own(entry).strip()))
    return found


def _entry(state_dir: Path) -> Path:
    name = hashlib.blake2b(str(state_dir).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return _folder() / f"{name}.path"


def _folder() -> Path:
    from platformdirs import user_state_path  # noqa: PLC0415 (keeps `ryz --help` quick)

    return user_state_path("ryzanstein", appauthor=False) / "stacks"
