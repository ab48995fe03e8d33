"""Compiles the kernels before a stack starts, if its installation has none yet, and says so.

Ranks compile missing kernels themselves, but nothing on the terminal would say why the first start takes a
minute longer, and the sizing would count the weights as fp32. Models are fetched meanwhile.
"""

import os
import threading
import time
from pathlib import Path

from cli.console import out
from cli.stack.fleet.declared import Declaration
from cli.stack.options import UpOptions
from services.worker.engine.native import build
from services.worker.engine.native.compiling.compile_clock import compile_clock


class KernelCompilation:
    """The compilation of one variant, in a thread.

    Args:
        target: The variant; empty: there is nothing to compile.
        only: Where it cannot be compiled, no other variant will do.
    """

    def __init__(self, target: str = "", *, only: bool = False) -> None:
        self._target, self._only = target, only
        self._there = {build.find(name) for name in build.targets()}
        self._made: Path | None = None
        self._began = self._ended = time.monotonic()
        self._problem: build.NoKernels | None = None
        # where this command ends before, the compiler ends with the thread
        self._thread = threading.Thread(target=self._compile, daemon=True)
        if target:
            self._thread.start()

    def wait(self) -> None:
        """Return when it is done; print for how long it goes on, what it took, or why there are none."""
        if not self._target:
            return
        try:
            if self._thread.is_alive():
                with compile_clock(self._target, self._began):
                    self._join()
            else:
                self._join()
                if self._made and self._made not in self._there:
                    variant, took_s = self._made.name.split("-")[1], self._ended - self._began
                    out.print(f"The kernels for {variant} were compiled meanwhile, in {took_s:.1f} s.")
        except build.NoKernels as error:
            out.print(f"No compiled kernels: {error}.", markup=False, soft_wrap=True)

    def _join(self) -> None:
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _compile(self) -> None:
        try:
            self._made = build.ensure(self._target if self._only else None)
        except build.NoKernels as error:
            self._problem = error
        self._ended = time.monotonic()


def begin_compiling(options: UpOptions, declared: Declaration) -> KernelCompilation:
    """Begin to compile the variant that groups will use, if it is missing and any model is computed here."""
    computed = declared.is_open or any(not entry.remote for entry in declared.entries.values())
    on_cpus = options.engine == "torch" and os.environ.get("RYZ_DEVICE") != "cuda"
    if not (computed and on_cpus) or options.kernels == "plain":
        return KernelCompilation()
    only = options.kernels in build.TARGETS
    names = [options.kernels] if only else build.targets()
    return KernelCompilation(names[0] if names and not build.find(names[0]) else "", only=only)
