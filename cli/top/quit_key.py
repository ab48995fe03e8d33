"""Waits for the key q on the terminal, without an Enter behind it."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from select import select

_QUIT = frozenset(b"qQ")


class QuitKey:
    """Reads keys between two looks.

    Args:
        reads: Whether stdin is a terminal.
        resume: Call it when the command goes on after Ctrl-Z, since a shell resets the terminal.
    """

    def __init__(self, reads: bool, resume: Callable[[], object] = lambda: None) -> None:
        self._reads = reads
        self.resume = resume

    def pressed_within(self, seconds: float) -> bool:
        """Waits so long, or until q is pressed, which makes it True."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            if not self._reads:
                time.sleep(left)
                return False
            if select([sys.stdin], [], [], left)[0]:
                keys = os.read(sys.stdin.fileno(), 64)  # not buffered, so that `select` sees what is left
                if not keys or _QUIT.intersection(keys):  # nothing: the terminal is gone
                    return True
        return False


@contextmanager
def quit_key() -> Iterator[QuitKey]:
    """Gives keys one by one in the block, where stdin is a terminal; restores the terminal afterwards."""
    if not sys.stdin.isatty():
        yield QuitKey(False)
        return
    import termios  # noqa: PLC0415 (not on Windows)
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield QuitKey(True, lambda: tty.setcbreak(sys.stdin))
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
