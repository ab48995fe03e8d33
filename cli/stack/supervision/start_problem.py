"""Finds in a service's log why it could not start, as it said in its last line for people."""

import re
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 16_384  # of the end of the log; what a leader and its ranks write on the way out is less
_SAID = re.compile(rb"^(?:\w+ cannot start|wrong setting): (.+)$", re.MULTILINE)  # lifecycle.py, settings.py


def start_problem(log: Path, begin: int) -> str:
    """Return why the service could not start; empty if it has not said so.

    Args:
        begin: Bytes of the log that are of earlier starts.
    """
    with suppress(OSError), log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(begin, size - MAX_BYTES))
        if said := _SAID.findall(file.read(MAX_BYTES)):
            return str(said[-1].decode(errors="replace").strip())
    return ""
