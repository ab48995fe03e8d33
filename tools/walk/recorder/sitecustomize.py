"""Records the calls of our functions between two signals. Python imports this file by its name at the start.

Every thread has the profile function from the start, and it does nothing before the first signal. A forked
process inherits it.

What is recorded are pieces: a call from outside of our code (from the event loop, or from a loop that ran
already when the recording began) with all calls of ours that it leads to until it returns or is suspended.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER, ROOT = os.environ.get("RYZ_WALK_FOLDER", ""), os.environ.get("RYZ_WALK_ROOT", "")
OURS = (f"{ROOT}services/", f"{ROOT}shared/")

Piece = list[tuple[str, str]]


class Recorder:
    """The calls of this process since the last signal that began a recording."""

    def __init__(self) -> None:
        self._pieces: list[Piece] | None = None
        self._depths: dict[int, int] = {}  # of each thread, in its piece
        self._running: dict[int, Piece] = {}
        self._written = 0

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Notes a call; a coroutine or generator that goes on counts as a call as well."""
        if self._pieces is None or event[0] not in "cr" or not frame.f_code.co_filename.startswith(OURS):
            return
        thread = threading.get_ident()
        depth = self._depths.get(thread, 0)
        if event == "return":
            self._depths[thread] = max(0, depth - 1)  # 0: it was called before the recording
        elif event == "call":
            if not depth:
                self._running[thread] = []
                self._pieces.append(self._running[thread])
            code = frame.f_code
            self._running[thread].append((code.co_filename.removeprefix(ROOT), code.co_qualname))
            self._depths[thread] = depth + 1

    def switch(self, number: int, frame: FrameType | None) -> None:
        """Begins a recording, or ends it and writes it to a file."""
        pieces, self._pieces = self._pieces, [] if self._pieces is None else None
        self._depths, self._running = {}, {}
        if pieces is None:
            return
        self._written += 1
        target = Path(FOLDER) / f"{os.getpid()}-{self._written}.json"
        made = target.with_suffix(".part")
        made.write_text(json.dumps({"pieces": pieces}))
        made.rename(target)


if FOLDER:
    recorder = Recorder()
    signal.signal(signal.SIGUSR2, recorder.switch)
    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)
