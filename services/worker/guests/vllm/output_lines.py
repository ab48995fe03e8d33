"""What vLLM's processes write to stdout and stderr: whole lines, and the one that says why a start failed."""

import re
from collections import deque
from collections.abc import Iterator

KEPT = 200  # of a start that fails, the reason stands before the traces of the processes that it takes along
MAX_LINE = 2000  # characters
_PREFIX = re.compile(
    r"^(?:\(\w+(?: pid=\d+)?\) )*"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[[^\]]*\] ?)?"
)
_ERROR = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit): \S")
# raised where it is noticed that another process has failed, whose own lines say why
_CONSEQUENCES = re.compile(
    r"[Ee]ngine ?[Cc]ore|Worker(?:Proc)? (?:failed|initialization)|root cause|broken pipe"
)


class OutputLines:
    """Cuts bytes into lines, and keeps the last ones."""

    def __init__(self) -> None:
        self._partial = b""
        self._lines: deque[str] = deque(maxlen=KEPT)

    def feed(self, data: bytes) -> list[tuple[str, str]]:
        """Return the lines that are complete now, without vLLM's prefix, each with its level."""
        whole, newline, self._partial = (self._partial + data).replace(b"\r", b"\n").rpartition(b"\n")
        if len(self._partial) > MAX_LINE:
            whole, newline, self._partial = whole + newline + self._partial, b"\n", b""
        found: list[tuple[str, str]] = []
        for line in whole.decode(errors="replace").split("\n") if newline else ():
            level, text = _parts(line[:MAX_LINE].rstrip())
            if text:
                self._lines.append(text)
                found.append((level, text))
        return found

    def cause(self) -> str:
        """Return the last line that names an error, and not the failure of another process; empty: none."""
        return next((line for line in self._errors() if not _CONSEQUENCES.search(line)), "")

    def last_words(self) -> str:
        """Return the line that says best why all has ended; empty: nothing was written."""
        return self.cause() or next(self._errors(), "") or (self._lines[-1].strip() if self._lines else "")

    def explain(self, reason: str) -> str:
        """Return what stands for a reason that only says that another process of vLLM failed."""
        return self.last_words() or reason if _CONSEQUENCES.search(reason) else reason

    def _errors(self) -> Iterator[str]:
        lines = (line.strip() for line in reversed(self._lines))
        return (line for line in lines if _ERROR.match(line))


def _parts(line: str) -> tuple[str, str]:
    match = _PREFIX.match(line)
    assert match is not None  # all of it may be missing
    return (match["level"] or "INFO").lower(), line[match.end() :]
