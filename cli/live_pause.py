"""Lets Ctrl-Z stop a command that has the whole terminal, and `fg` bring it back."""

import os
import signal
from collections.abc import Callable

from rich.live import Live


def pause_with(live: Live, restore: Callable[[], object] = lambda: None) -> None:
    """Handles Ctrl-Z from now on: restores the terminal, stops, and shows the view again afterwards.

    Args:
        restore: Called after the command goes on.
    """

    def pause(*_: object) -> None:
        live.stop()
        os.kill(os.getpid(), signal.SIGSTOP)
        restore()
        live.start(refresh=True)

    signal.signal(signal.SIGTSTP, pause)
