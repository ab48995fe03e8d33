"""Compiles the kernels before a stack starts, if its installation has none yet, and says so.

Ranks compile missing kernels themselves, but nothing on the terminal would say why the first start takes a
minute longer, and the sizing would count the weights as fp32.
"""

import os

from cli.console import out
from cli.stack.options import UpOptions
from services.worker.engine.native import build


def compile_missing_kernels(options: UpOptions) -> None:
    """Compiles the variant that the groups will use; prints what it does, for how long, or what failed."""
    if options.engine != "torch" or options.kernels == "plain" or os.environ.get("RYZ_DEVICE") == "cuda":
        return
    names = [options.kernels] if options.kernels in build.TARGETS else build.targets()
    if not names or build.find(names[0]):
        return
    try:
        compiler = build.own_compiler()
        with build.compile_clock(names[0]):
            build.ensure(names[0], compiler)
    except build.NoKernels as error:
        out.print(f"No compiled kernels: {error}.", markup=False, soft_wrap=True)
