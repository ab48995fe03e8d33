"""The build of the kernels: where the library is stored, that it is built once, and each way to fail."""

import os
import platform
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.worker.engine.native import build, library
from services.worker.engine.native.build import NoKernels, ensure, find, main, targets
from services.worker.engine.native.compiling import compile_clock
from tests.kits.engine.small_program import answer_of, compiles, use_small_program, write_program
from tests.kits.waiting import wait_for

ROOT = Path(__file__).parents[5]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small program instead of the kernels, and a separate cache folder."""
    use_small_program(tmp_path, monkeypatch)
    return tmp_path


def script(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@compiles
def test_it_is_made_beside_the_sources_once(root: Path) -> None:
    assert find("avx2") is None
    made = ensure()
    assert made.parent == root / "native" / "build"
    assert answer_of(made) == 1
    before = made.stat().st_mtime_ns
    assert ensure() == find("avx2") == made
    assert made.stat().st_mtime_ns == before


@compiles
def test_other_sources_are_another_library_and_the_stale_one_goes(root: Path) -> None:
    old = ensure()
    other_variant = old.with_name(old.name.replace("avx2", "avx512"))
    other_variant.touch()
    write_program(2)
    assert find("avx2") is None  # the stale library is not returned
    new = ensure()
    assert answer_of(new) == 2
    assert not old.exists()
    assert other_variant.exists()


@compiles
def test_a_folder_that_cannot_be_written_leaves_the_cache(root: Path) -> None:
    (root / "native" / "build").write_text("a file in its place")
    made = ensure()
    assert made.parent == root / "cache" / "ryzanstein"
    assert answer_of(made) == 1


def test_nowhere_to_put_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "native" / "build").touch()
    (root / "cache").touch()
    monkeypatch.setenv("CXX", script(root / "cxx", "exit 0"))
    with pytest.raises(NoKernels) as refused:
        ensure()
    assert str(refused.value) == (
        f"neither {root}/native/build nor {root}/cache/ryzanstein can be written; "
        "set XDG_CACHE_HOME to a directory that can"
    )


def test_a_user_without_a_home_has_one_place(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user id without an account
    (root / "native" / "build").touch()
    monkeypatch.setenv("CXX", script(root / "cxx", "exit 0"))
    with pytest.raises(NoKernels, match=r"native/build can be written; set XDG_CACHE_HOME"):
        ensure()


def test_no_compiler(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(root))
    with pytest.raises(NoKernels) as refused:
        ensure()
    assert str(refused.value) == "no C++ compiler was found; install g++ or clang++, or name one in CXX"


def test_a_compiler_by_name_that_is_not_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(NoKernels, match="CXX=no-such-compiler -O1 was not found"):
        ensure()
    monkeypatch.setenv("CXX", "g++ 'open")
    with pytest.raises(NoKernels, match=r"CXX=g\+\+ 'open is no command: No closing quotation; set it to"):
        ensure()


@compiles
@pytest.mark.parametrize(("source", "library", "folder"), [(0o644, 0o644, 0o755), (0o600, 0o600, 0o700)])
def test_it_is_for_those_who_may_read_the_sources(root: Path, source: int, library: int, folder: int) -> None:
    (build.SOURCES / "program.cpp").chmod(source)
    before = os.umask(0o077)  # the umask that `ryz up` sets
    try:
        made = ensure()
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == library
    assert made.parent.stat().st_mode & 0o777 == folder


@compiles
def test_the_compiler_may_have_arguments(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = script(root / "wrapper", f'echo "$1" > {root}/called', "shift", 'exec "$@"')
    monkeypatch.setenv("CXX", f"{wrapper} 'an argument' g++")
    assert answer_of(ensure()) == 1
    assert (root / "called").read_text() == "an argument\n"


@compiles
def test_broken_sources_are_quoted_and_leave_nothing(root: Path) -> None:
    (build.SOURCES / "program.cpp").write_text("int answer() { return nothing; }\n")
    with pytest.raises(NoKernels, match=r"could not compile the kernels: .*error: .*nothing"):
        ensure()
    assert find("avx2") is None


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["exit 3"], r"no reason was given \(exit code 3\)"),
        (["echo no space left >&2", "exit 1"], "no space left"),
        (["echo 'internal error: out of memory' >&2", "exit 1"], "internal error: out of memory"),
        (["sleep 5"], "timed out"),
        (["exit 0"], "could not be stored"),  # exits with 0, but writes no library
    ],
)
def test_a_broken_compiler(
    root: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], reason: str
) -> None:
    monkeypatch.setenv("CXX", script(root / "cxx", *lines))
    monkeypatch.setattr(build, "OWN_COMPILER_LIMIT_S", 1.5)  # a busy machine starts a shell slowly
    with pytest.raises(NoKernels, match=reason):
        ensure()
    assert find("avx2") is None


@compiles
def test_a_compiler_that_does_not_know_the_best_instructions_compiles_for_others(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = "echo \"error: unrecognized option '-mavxvnni'\" >&2; exit 1"
    wrapper = script(root / "cxx", f'case "$*" in *vnni*) {refused};; esac', 'exec g++ "$@"')
    monkeypatch.setenv("CXX", str(wrapper))
    monkeypatch.setattr(build, "targets", lambda: ["avxvnni", "avx2"])
    with pytest.raises(NoKernels, match="unrecognized option '-mavxvnni'"):
        ensure("avxvnni")
    monkeypatch.setattr(sys, "argv", ["build", "--best"])
    assert main() == 0
    said = capsys.readouterr().out
    assert "No kernels for avxvnni: " in said
    assert f"Kernels for avx2: {find('avx2')}" in said
    assert "plain path" not in said
    assert ensure() == find("avx2")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert ensure() == find("avx2"), "what is there is used without a compiler"
    with pytest.raises(NoKernels, match="no-such-compiler"):
        ensure("avxvnni")


def test_a_compiler_that_cannot_be_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = root / "cxx"
    broken.write_bytes(b"\x7fELF, but no program")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(NoKernels, match=f"{broken} could not compile the kernels: "):
        ensure()


def test_a_compiler_that_takes_too_long_ends_with_the_processes_it_started(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = root / "child"
    monkeypatch.setenv("CXX", script(root / "cxx", f"sleep 60 & echo $! > {child}", "wait"))
    for limit_s in (0.5, 4, 16):  # a busy machine may not have begun the script in half a second
        monkeypatch.setattr(build, "OWN_COMPILER_LIMIT_S", limit_s)
        with pytest.raises(NoKernels, match=f"timed out after {limit_s} seconds"):
            ensure()
        if child.exists() and child.read_text():
            break
    status = Path(f"/proc/{int(child.read_text())}/status")
    # a signal takes effect a moment later
    wait_for(
        lambda: not status.exists() or "State:\tZ" in status.read_text(), "the compiler's child ends", 10
    )


@compiles
def test_processes_that_want_it_at_once_share_one_compilation(root: Path) -> None:
    wrapper = script(root / "cxx", f"echo run >> {root}/runs", "sleep 0.3", 'exec g++ "$@"')
    program = (
        "from pathlib import Path\n"
        "from services.worker.engine.native import build\n"
        f"build.SOURCES = Path({str(build.SOURCES)!r})\n"
        "build.MAIN_SOURCE = build.SOURCES / 'program.cpp'\n"
        "print(build.ensure('avx2'))\n"
    )
    env = os.environ | {"CXX": wrapper}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    outputs = {process.communicate(timeout=30)[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert outputs == {str(find("avx2"))}
    assert (root / "runs").read_text() == "run\n"


@compiles
def test_a_library_that_does_not_load_is_no_kernels(root: Path) -> None:
    made = ensure()
    made.write_bytes(b"no library")
    with pytest.raises(NoKernels, match=f"{made} cannot be loaded: .*; remove it"):
        library.kernels.__wrapped__("avx2")


@pytest.mark.parametrize(("system", "machine"), [("darwin", "x86_64"), ("linux", "aarch64")])
def test_other_machines_have_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], system: str, machine: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert targets() == []
    with pytest.raises(NoKernels, match="the kernels are for Linux on x86-64"):
        ensure()
    for arguments in ([], ["--all"]):
        monkeypatch.setattr(sys, "argv", ["build", *arguments])
        assert main() == 0  # a build for that machine succeeds without kernels
        assert "it serves with the plain path" in capsys.readouterr().out


def test_a_processor_has_the_variants_whose_instructions_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for names, wanted in ({"avx2"}, ["avx2"]), ({"avx2", "avxvnni"}, ["avxvnni", "avx2"]), (set[str](), []):
        flags = set[str]().union(*(build.TARGETS[name][0] for name in names))
        text = f"processor : 0\nflags\t\t: fpu {' '.join(flags)}\n"
        monkeypatch.setattr(Path, "read_text", lambda *_, text=text, **__: text)
        assert targets() == wanted


@compiles
def test_the_command_says_where_they_are(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["build"])
    assert main() == 0
    begin, took, where = capsys.readouterr().out.splitlines()
    assert begin == ("Compiling the kernels for avx2, once; that takes one to two minutes of a free core ...")
    assert re.fullmatch(r"  compiled after \d+\.\d s", took)
    assert where == f"Kernels for avx2: {find('avx2')}"
    assert main() == 0
    assert capsys.readouterr().out == f"Kernels for avx2: {find('avx2')}\n"
    monkeypatch.setattr(sys, "argv", ["build", "--all"])
    assert main() == 0
    beside = root / "native" / "build"
    assert {path.name.split("-")[1] for path in beside.glob("*.so")} == set(build.TARGETS)
    cache = root / "cache" / "ryzanstein"  # images and wheels take nothing from there
    assert {path.name for path in beside.glob("*.so")} == {path.name for path in cache.glob("*.so")}
    for made in beside.glob("*.so"):
        made.unlink()
    assert main() == 0
    assert {path.name.split("-")[1] for path in beside.glob("*.so")} == set(build.TARGETS)


@compiles
def test_a_rank_that_compiles_them_logs_it(root: Path) -> None:
    library.kernels.cache_clear()  # it may have those of another test
    began = time.monotonic()
    with capture_logs() as logs, pytest.raises(AttributeError):  # the small program has none of the functions
        library.kernels("avx2")
    took_s = time.monotonic() - began
    assert find("avx2")
    assert [entry["event"] for entry in logs] == ["compiling the kernels, once", "kernels compiled"]
    assert logs[1]["waited_s"] == pytest.approx(
        took_s, abs=took_s / 2 + 0.05
    )  # of which most is the compiler's


@compiles
def test_a_compilation_that_takes_long_says_that_it_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compile_clock, "PROGRESS_S", 0.1)
    monkeypatch.setenv("CXX", script(root / "cxx", "sleep 1", "exit 1"))
    monkeypatch.setattr(build, "targets", lambda: ["avx2"])
    monkeypatch.setattr(sys, "argv", ["build"])
    assert main() == 0
    _, *still, ended, problem, rest = capsys.readouterr().out.splitlines()
    assert still
    assert all(re.fullmatch(r"  still compiling after \d+ s", line) for line in still)
    assert re.fullmatch(r"  not compiled after \d+\.\d s", ended)
    assert problem.startswith("No kernels for avx2: ")
    assert rest == "It serves with the plain path, several times slower."


@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["--all"], 1)])
def test_an_installation_goes_on_without_and_an_image_does_not(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
) -> None:
    monkeypatch.setattr(build, "can_have_kernels", lambda: True)
    monkeypatch.setenv("PATH", str(root))
    monkeypatch.setattr(sys, "argv", ["build", *arguments])
    assert main() == status
    assert "No kernels for avx2: no C++ compiler was found; install g++" in capsys.readouterr().out
