"""Loads the modules that `make compile` compiled, in place of their sources (decision 0058).

They are made of the same files, and do the same in less time. A build is for one state of all sources and for
one Python: after an edit, services read the sources again until the next `make compile`.
"""

import hashlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
BUILDS = ROOT / "build" / "compiled"
PACKAGES = ("services", "shared")
LIBRARY = "ryz_compiled"  # the code of all modules; a small file for each module refers to it
SUFFIX = EXTENSION_SUFFIXES[0]  # names the Python and the processor


def build_of_sources() -> Path:
    """Where a build of the sources as they are now belongs."""
    digest = hashlib.blake2b(SUFFIX.encode(), digest_size=8)
    for source in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        digest.update(str(source.relative_to(ROOT)).encode())
        digest.update(source.read_bytes())
    return BUILDS / digest.hexdigest()


class CompiledModules(MetaPathFinder):
    """Finds compiled modules in a build."""

    def __init__(self, build: Path) -> None:
        self.build = build

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of a module that was compiled, else None."""
        if fullname.partition(".")[0] not in {*PACKAGES, f"{LIBRARY}__mypyc"}:
            return None
        file = self.build / (fullname.replace(".", "/") + SUFFIX)
        return spec_from_file_location(fullname, file) if file.is_file() else None


def used_build() -> Path | None:
    """The build that imports of this process find modules in; None if they read the sources."""
    return next((finder.build for finder in sys.meta_path if isinstance(finder, CompiledModules)), None)


def find_build() -> Path | None:
    """The build that services use: that of the sources as they are, unless `RYZ_COMPILED=off`."""
    if os.environ.get("RYZ_COMPILED") == "off" or not BUILDS.is_dir():
        return None
    build = build_of_sources()
    return build if build.is_dir() else None


def use_compiled_modules() -> Path | None:
    """Lets imports from now on find compiled modules; returns the build, or None if there is none."""
    build = used_build()
    if build is None:
        build = find_build()
        if build is not None:
            sys.meta_path.insert(0, CompiledModules(build))
    return build


def use_in_service() -> None:
    """The same in processes of services alone; tests and tools read the sources."""
    if any(word.startswith("services.") for word in sys.orig_argv[1:]):
        use_compiled_modules()
