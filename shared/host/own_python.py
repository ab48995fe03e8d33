"""How a Python process of ours is started, so that nothing that lies in the working directory is run.

`python -m` puts the working directory first on the module path: a folder that others may write to would then
decide what is imported.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_INSTALLED = ("site-packages", "dist-packages")


def module_command(module: str) -> list[str]:
    """The command that runs a module of ours with this interpreter; run it with `module_environment`."""
    return [sys.executable, "-P", "-m", module]


def module_environment(environ: Mapping[str, str], root: Path = _ROOT) -> dict[str, str]:
    """The environment for `module_command`, which holds for the processes that it starts in turn, too.

    A checkout is found wherever the command is run. Installed packages are found anyway, and are not named:
    what is in PYTHONPATH goes before the standard library.

    Args:
        environ: What else the process is to have.
        root: The directory that has our packages.
    """
    # an empty entry stands for the working directory
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root.name not in _INSTALLED and str(root) not in paths:
        paths.insert(0, str(root))
    safe = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return {**environ, **safe}
