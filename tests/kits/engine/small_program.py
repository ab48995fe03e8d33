"""A small program in place of the kernels, for tests of how they are compiled."""

import ctypes
import os
from pathlib import Path

import pytest

from services.worker.engine.native import build

PROGRAM = 'extern "C" int answer() { return %d; }\n'
CAN_COMPILE = bool(build.targets()) and any(
    os.access(Path(folder) / name, os.X_OK)
    for folder in os.environ["PATH"].split(os.pathsep)
    for name in ("c++", "g++", "clang++")
)
compiles = pytest.mark.skipif(not CAN_COMPILE, reason="needs x86-64 with AVX2 and a C++ compiler")


def use_small_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a small program into the place of the kernels, below that folder; it also holds the cache."""
    monkeypatch.setattr(build, "SOURCES", folder / "native" / "src")
    monkeypatch.setattr(build, "MAIN_SOURCE", build.SOURCES / "program.cpp")
    monkeypatch.setattr(build, "targets", lambda: ["avx2"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    write_program(1)


def write_program(answer: int) -> None:
    build.SOURCES.mkdir(parents=True, exist_ok=True)
    (build.SOURCES / "program.cpp").write_text(PROGRAM % answer)


def answer_of(library: Path) -> int:
    answer: int = ctypes.CDLL(str(library)).answer()
    return answer
