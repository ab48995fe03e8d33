"""Imports what was compiled, and refuses a build whose classes and those of the sources do not fit together.

Run by `compile_modules.py` in a process of its own, as `python -m tools.check_compiled BUILD MODULE...`.
"""

import importlib
import re
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType

from shared.compiled_modules import PACKAGES, ROOT, CompiledModules

SERVICES = ("gateway", "kvstate", "router", "worker")  # imported whole, since subclasses must be known
_OPEN = re.compile(r"allow_interpreted_subclasses=True\)[^\n]*\nclass (\w+)")


def faults_of(module: ModuleType, compiled: Collection[str]) -> list[str]:
    """What is wrong with the classes of a compiled module.

    Classes that are no extension types, such as errors and protocols, fit together with all others.
    """
    found = []
    source = (ROOT / (module.__name__.replace(".", "/") + ".py")).read_text()
    is_open = set(_OPEN.findall(source))
    classes: list[type[object]] = [part for part in vars(module).values() if isinstance(part, type)]
    for part in classes:
        if part.__module__ != module.__name__ or part.__name__ in is_open:
            continue
        if not hasattr(part, "__mypyc_attrs__"):
            continue
        bases = [one.__module__ in compiled for one in part.__mro__ if one.__module__.startswith(PACKAGES)]
        if bases != sorted(bases, reverse=True):
            found.append(f"{part}: super() would skip one of its bases, which is not compiled")
        others = [one for one in part.__subclasses__() if one.__module__ not in compiled]
        found += [f"{one} is not compiled, and cannot inherit from {part}" for one in others]
    return found


def main() -> int:
    """Prints the faults; 1 if there are any."""
    build, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    sys.meta_path.insert(0, CompiledModules(build))
    for service in SERVICES:
        importlib.import_module(f"services.{service}.__main__")
    faults = []
    for name in names:
        module = importlib.import_module(name)
        if module.__file__ is None or not Path(module.__file__).is_relative_to(build):
            faults.append(f"{name} was imported from {module.__file__}")
        faults += faults_of(module, names)
    print("\n".join(faults), file=sys.stderr, end="\n" * bool(faults))
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main())
