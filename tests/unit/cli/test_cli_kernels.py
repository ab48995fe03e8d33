"""The kernels of a fresh checkout are compiled before a stack starts, and the terminal says so."""

from pathlib import Path

import pytest

from cli.stack.kernels import compile_missing_kernels
from cli.stack.options import UpOptions
from services.worker.engine.native import build
from tests.kits.engine.small_program import compiles, use_small_program


@compiles
def test_a_first_start_says_that_it_compiles_and_how_long_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_small_program(tmp_path, monkeypatch)
    compile_missing_kernels(UpOptions(model=[tmp_path]))
    begin, took = capsys.readouterr().out.splitlines()
    assert begin.startswith("Compiling the kernels for avx2, once")
    assert took.startswith("  compiled after ")
    assert build.find("avx2")
    compile_missing_kernels(UpOptions(model=[tmp_path]))
    assert capsys.readouterr().out == ""


def test_without_a_compiler_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_small_program(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    compile_missing_kernels(UpOptions(model=[tmp_path]))
    assert "No compiled kernels: no C++ compiler was found; install g++" in capsys.readouterr().out


@pytest.mark.parametrize("options", [UpOptions(engine="null"), UpOptions(kernels="plain")])
def test_a_stack_that_needs_none_compiles_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: UpOptions,
) -> None:
    use_small_program(tmp_path, monkeypatch)
    compile_missing_kernels(options)
    assert capsys.readouterr().out == ""
    assert build.find("avx2") is None
