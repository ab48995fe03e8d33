"""Says on a terminal, or in a file, that a compilation goes on."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PROGRESS_S = 15.0  # between two lines in a file


@contextmanager
def compile_clock(target: str, began: float | None = None) -> Iterator[None]:
    """Prints what is compiled, each second (in a file: each 15 s) for how long, and what it took in the end.

    Args:
        target: The variant that is compiled meanwhile.
        began: When that began, by the monotonic clock; None: now.
    """
    live, over, began = sys.stdout.isatty(), threading.Event(), began or time.monotonic()
    what = f"Compiling the kernels for {target}, once; that takes one to two minutes of a free core"
    print(f"{what} ...", end="" if live else "\n", flush=True)

    def print_progress() -> None:
        while not over.wait(1.0 if live else PROGRESS_S):
            seconds = time.monotonic() - began
            text = f"\r{what} ... {seconds:.0f} s" if live else f"  still compiling after {seconds:.0f} s"
            print(text, end="" if live else "\n", flush=True)

    ticking = threading.Thread(target=print_progress, daemon=True)
    ticking.start()
    done = False
    try:
        yield
        done = True
    finally:
        over.set()
        ticking.join()
        seconds = time.monotonic() - began
        first = "\n" if live else ""
        print(f"{first}  {'compiled' if done else 'not compiled'} after {seconds:.1f} s", flush=True)
