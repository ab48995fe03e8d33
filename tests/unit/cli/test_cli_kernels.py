"""The kernels of a fresh checkout are compiled before a stack starts, and the terminal says so."""

import re
import threading
from pathlib import Path

import pytest

from cli.stack.fleet.declare import declare
from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import ModelEntry
from cli.stack.kernels import begin_compiling
from cli.stack.options import UpOptions
from services.worker.engine.native import build
from tests.kits.engine.small_program import compiles, use_small_program
from tests.kits.waiting import wait_for


def slow_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, pause_s: str) -> None:
    wrapper = folder / "cxx"
    wrapper.write_text(f'#!/bin/sh\nsleep {pause_s}\nexec g++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))


def compile_kernels(options: UpOptions) -> None:
    begin_compiling(options, declare(options, {})).wait()


@compiles
def test_a_first_start_says_that_it_compiles_and_how_long_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_small_program(tmp_path, monkeypatch)
    slow_compiler(tmp_path, monkeypatch, "0.4")
    compile_kernels(UpOptions(model=[tmp_path]))
    begin, took = capsys.readouterr().out.splitlines()
    assert begin.startswith("Compiling the kernels for avx2, once")
    assert took.startswith("  compiled after ")
    assert build.find("avx2")
    compile_kernels(UpOptions(model=[tmp_path]))
    assert capsys.readouterr().out == ""


@compiles
def test_where_the_compiler_refuses_the_best_variant_another_one_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_small_program(tmp_path, monkeypatch)
    wrapper = tmp_path / "cxx"
    wrapper.write_text('#!/bin/sh\ncase "$*" in *vnni*) exit 1;; esac\nexec g++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    monkeypatch.setattr(build, "targets", lambda: ["avxvnni", "avx2"])
    others = threading.active_count()
    for told in (1, 0):
        options = UpOptions(model=[tmp_path])
        compilation = begin_compiling(options, declare(options, {}))
        wait_for(lambda: threading.active_count() == others, "the compilation ends")
        compilation.wait()
        said = capsys.readouterr().out
        assert said.count("The kernels for avx2 were compiled meanwhile") == said.count("\n") == told


def test_without_a_compiler_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_small_program(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    compile_kernels(UpOptions(model=[tmp_path]))
    assert "No compiled kernels: no C++ compiler was found; install g++" in capsys.readouterr().out


@pytest.mark.parametrize("options", [UpOptions(engine="null"), UpOptions(kernels="plain")])
def test_a_stack_that_needs_none_compiles_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: UpOptions,
) -> None:
    use_small_program(tmp_path, monkeypatch)
    compile_kernels(options)
    assert capsys.readouterr().out == ""
    assert build.find("avx2") is None


@compiles
def test_models_are_fetched_while_the_kernels_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_small_program(tmp_path, monkeypatch)
    options = UpOptions(model=[tmp_path])
    others = threading.active_count()
    compilation = begin_compiling(options, declare(options, {}))
    wait_for(lambda: build.find("avx2") is not None, "the kernels are there before anybody waits")
    assert capsys.readouterr().out == "", "the terminal is left to the bar of the fetch"
    wait_for(lambda: threading.active_count() == others, "the compilation ends")
    compilation.wait()
    assert re.fullmatch(
        r"The kernels for avx2 were compiled meanwhile, in \d+\.\d s\.\n", capsys.readouterr().out
    )


def test_a_stack_of_models_of_other_servers_compiles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_program(tmp_path, monkeypatch)
    entry = ModelEntry(source="demo", name="big", remote="http://127.0.0.1:9")
    begin_compiling(UpOptions(), Declaration(file=tmp_path / "models.toml", entries={0: entry})).wait()
    assert build.find("avx2") is None
