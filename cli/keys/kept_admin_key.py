"""Keeps `STATE_DIR/admin.key` in step with its key: rotated, it has the new one; revoked, it says so.

The key's id decides, so a file is never changed for a key of another stack. Changes over HTTP do not reach
the file: a gateway does not know the state directory.
"""

from collections.abc import Collection
from pathlib import Path

from cli.stack.host.private import replace_private
from shared.accounts.keys import key_id_of, shown_prefix
from shared.host.local_stack import ADMIN_KEY_FILE, ForeignFileError, read_own


def read_kept(state_dir: Path) -> str:
    """Return the key in the file; empty if there is none, it was revoked, or the file is another user's."""
    try:
        text = read_own(state_dir / ADMIN_KEY_FILE).strip()
    except (ForeignFileError, OSError, UnicodeDecodeError):
        return ""
    return text if key_id_of(text) is not None else ""


def note_rotated(state_dir: Path, old_id: str, text: str) -> str:
    """Write the new key into the file if it has the old one.

    Args:
        state_dir: The state directory of the stack.
        old_id: Of the key that was rotated.
        text: The new key.

    Returns:
        What was done, in a sentence; empty if the file has another key, or there is none.
    """
    file = state_dir / ADMIN_KEY_FILE
    if _kept_id(file) != old_id:
        return ""
    return _replaced(file, f"{text}\n", f"{file} has the new key.")


def note_revoked(state_dir: Path, key_ids: Collection[str]) -> str:
    """Write into the file that its key is revoked, if it is one of these; see `note_rotated`.

    The file stays, so that the next start makes no key in the place of one that was taken away on purpose.
    """
    file = state_dir / ADMIN_KEY_FILE
    kept = _kept_id(file)
    if kept is None or kept not in key_ids:
        return ""
    text = f"# {shown_prefix(kept)} is revoked; `ryz keys create --admin` makes another admin key\n"
    return _replaced(
        file, text, f"It was the key in {file}, which says so now; `ryz keys create --admin` makes another."
    )


def _kept_id(file: Path) -> str | None:
    try:
        return key_id_of(read_own(file).strip())
    except (ForeignFileError, OSError, UnicodeDecodeError):
        return None


def _replaced(file: Path, text: str, done: str) -> str:
    try:
        replace_private(file, text)
    except OSError as error:
        return f"{file} is out of date and cannot be written ({error.strerror}): it still has the old key."
    return done
