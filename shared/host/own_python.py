"""Starts Python processes that import nothing from the working directory.

`python -m` puts the working directory first on the module path, so files in a folder that others may write to
would be imported.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_INSTALLED = ("site-packages", "dist-packages")


def module_command(module: str, python: Path | None = None) -> list[str]:
    """Returns the command that runs one of our modules in `module_environment`, with this Python if None."""
    return [str(python or sys.executable), "-P", "-m", module]


def module_environment(environ: Mapping[str, str], root: Path = _ROOT) -> dict[str, str]:
    """Returns the environment for `module_command` and for the processes that it starts in turn.

    It names a checkout, so that the command can be run anywhere. Installed packages are found without it, and
    are not named, since PYTHONPATH comes before the standard library.

    Args:
        root: The directory that contains our packages.
    """
    # an empty entry stands for the working directory
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root.name not in _INSTALLED and str(root) not in paths:
        paths.insert(0, str(root))
    safe = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return {**environ, **safe}
