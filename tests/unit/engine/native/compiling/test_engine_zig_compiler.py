"""The compiler of a machine without one: fetched while the kernels compile, and removed."""

import os
import shutil
import stat
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from services.worker.engine import zig_compiler
from services.worker.engine.native import build
from services.worker.engine.native.build import find, main
from tests.kits.engine.small_program import answer_of, compiles, use_small_program


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_small_program(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def index(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a compiler, and a folder where pip finds a `ziglang` that calls the one of PATH."""
    wheels = root / "wheels"
    wheels.mkdir()
    version = zig_compiler.ZIGLANG.partition("==")[2]
    compiler = next(path for name in ("c++", "g++", "clang++") if (path := shutil.which(name)))
    called = f'#!/bin/sh\necho "$@" >> {root}/called\nfor last; do :; done\n'
    called += f'exec {compiler} -shared -fPIC {build.SOURCES}/program.cpp -o "$last"\n'
    with zipfile.ZipFile(wheels / f"ziglang-{version}-py3-none-any.whl", "w") as wheel:
        info = f"ziglang-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: ziglang\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        program = zipfile.ZipInfo("ziglang/zig")
        program.external_attr = (stat.S_IFREG | 0o755) << 16
        wheel.writestr(program, called)
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", wheels), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", str(value))
    monkeypatch.setenv("TMPDIR", str(root))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(build, "compiler_command", no_compiler)
    return wheels


def no_compiler() -> list[str]:
    raise build.NoCompiler("no C++ compiler was found")


@compiles
def test_without_a_compiler_one_is_fetched_and_removed(
    index: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["build", "--fetch-compiler"])
    assert main() == 0
    made = find("avx2")
    assert made is not None
    assert answer_of(made) == 1
    said = capfd.readouterr().out
    assert said.index(f"{zig_compiler.ZIGLANG} is fetched") < said.index("Compiling") < said.index(str(made))
    command = (root / "called").read_text().split()
    assert command[0] == "c++"
    assert {"-ffp-contract=off", *zig_compiler.OPTIONS["avx2"]} <= set(command)
    assert not list(root.glob("ryz-zig-*"))
    assert "ZIG_GLOBAL_CACHE_DIR" not in os.environ


@compiles
def test_where_it_cannot_be_fetched_the_plain_path_serves(
    index: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    next(index.iterdir()).unlink()
    monkeypatch.setattr(sys, "argv", ["build", "--fetch-compiler"])
    assert main() == 0
    printed = f"No kernels for avx2: pip could not fetch {zig_compiler.ZIGLANG}: No matching distribution"
    said = capfd.readouterr().out
    assert printed in said
    assert "It serves with the plain path" in said
    monkeypatch.setattr(zig_compiler, "NEEDED_MB", 10**9)
    assert main() == 0
    assert f"{root} has " in capfd.readouterr().out
    monkeypatch.setattr(sys, "argv", ["build"])
    assert main() == 0
    assert "No kernels for avx2: no C++ compiler was found" in capfd.readouterr().out
    assert not list(root.glob("ryz-zig-*"))


def test_every_variant_has_its_options_for_either_compiler() -> None:
    assert set(zig_compiler.OPTIONS) == set(build.TARGETS)
