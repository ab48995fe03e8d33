"""Compiles the kernels: `python -m services.worker.engine.native.build`; otherwise the first rank does it.

Each variant has a library, named after a hash of its sources and options. Without one, ranks use torch.
"""

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from services.worker.engine.native.compiling.compile_clock import compile_clock
from services.worker.engine.native.compiling.compiler_process import run_compiler
from services.worker.engine.zig_compiler import COMPILE_LIMIT_S, OPTIONS, NoZig, temporary_compiler

SOURCES = Path(__file__).resolve().parent / "src"
MAIN_SOURCE = SOURCES / "program.cpp"
# strict floating point: results must not depend on the compiler's choice in one of the variants
_OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
# best first: the flags of /proc/cpuinfo that a variant needs, and the compiler's name for them
TARGETS = {
    "avx512": (
        {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "fma", "f16c"},
        ("-march=x86-64-v4", "-mavx512vnni"),
    ),
    "avxvnni": ({"avx2", "fma", "f16c", "avx_vnni"}, ("-march=x86-64-v3", "-mavxvnni")),
    "avx2": ({"avx2", "fma", "f16c"}, ("-march=x86-64-v3",)),
}
OWN_COMPILER_LIMIT_S = 900  # 300 were too few beside twenty busy processes on two cores
KEPT_IN_CACHE = 4  # libraries of a variant: other checkouts may have other sources


class NoKernels(Exception):
    """There are no kernels for this machine, and none can be compiled; one sentence says why."""


class NoCompiler(NoKernels):
    """There is no C++ compiler on this machine."""


class NotCompiled(NoKernels):
    """The compiler refused them."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler, its options for each variant, and the seconds that it may take for one."""

    command: Sequence[str]
    options: Mapping[str, Sequence[str]]
    limit_s: float


def targets() -> list[str]:
    """The variants that this machine can run, best first."""
    if not can_have_kernels():
        return []
    flags: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            flags = set(line.partition(":")[2].split())
            break
    return [name for name, (needed, _) in TARGETS.items() if needed <= flags]


def can_have_kernels() -> bool:
    """True on the system and the processors that the kernels are written for."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def find(target: str) -> Path | None:
    """The library of a variant, if it has been compiled."""
    return next((path for path in candidates(target) if path.is_file()), None)


def ensure(target: str | None = None, compiler: Compiler | None = None) -> Path:
    """The library for this machine (or of one variant), compiled now if need be.

    Args:
        target: The variant; None: the best of this machine that is there or can be compiled.
        compiler: Compiles it; None: the one of this machine.

    Raises:
        NoKernels: The machine can run none, or there is no compiler, or it failed.
    """
    names = [target] if target else targets()
    if not names:
        raise NoKernels("the kernels are for Linux on x86-64 with AVX2 or AVX-512")
    while True:
        name, *others = names
        try:
            return find(name) or _compile(name, compiler or own_compiler())
        except OSError as error:
            raise NoKernels(f"the compiled kernels could not be stored: {error}") from error
        except NoKernels as error:
            # an older compiler does not know the newest instructions; without one, what is there will do
            refused = isinstance(error, NotCompiled)
            names = [other for other in others if refused or find(other)]
            if not names:
                raise


def candidates(target: str) -> list[Path]:
    """Where a library may be: beside the sources, and in the user's cache."""
    digest = hashlib.blake2b(repr((_OPTIONS, TARGETS[target][1])).encode(), digest_size=8)
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(source.read_bytes())
    name = f"kernels-{target}-{digest.hexdigest()}.so"
    # a container's user may have no home
    home = os.path.expanduser("~")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache")
    paths = [SOURCES.parent / "build" / name, cache / "ryzanstein" / name]
    return [path for path in paths if path.is_absolute()]


def own_compiler() -> Compiler:
    """The C++ compiler of this machine: CXX, which may have arguments, else the first one on PATH.

    Raises:
        NoKernels: There is none; `NoCompiler` if CXX names none either.
    """
    options = {name: options for name, (_, options) in TARGETS.items()}
    return Compiler(compiler_command(), options, OWN_COMPILER_LIMIT_S)


def compiler_command() -> list[str]:
    """The command of `own_compiler`; raises like it."""
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise NoKernels(
            f"CXX={os.environ['CXX']} is no command: {error}; set it to a C++ compiler, or to nothing"
        ) from error
    for command in [chosen] if chosen else [["c++"], ["g++"], ["clang++"]]:
        if found := shutil.which(command[0]):
            return [found, *command[1:]]
    if chosen:
        raise NoKernels(f"CXX={os.environ['CXX']} was not found; set it to a C++ compiler, or to nothing")
    raise NoCompiler("no C++ compiler was found; install g++ or clang++, or name one in CXX")


def _compile(target: str, compiler: Compiler) -> Path:
    name = compiler.command[0]
    path = next((p for p in candidates(target) if _writable(p.parent)), None)
    if path is None:
        paths = " nor ".join(str(path.parent) for path in candidates(target))
        raise NoKernels(f"neither {paths} can be written; set XDG_CACHE_HOME to a directory that can")
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the ranks of a group compile it at the same time
        if path.is_file():
            return path
        draft = path.with_suffix(".new")
        options = [*_OPTIONS, *compiler.options[target]]
        command = [*compiler.command, *options, str(MAIN_SOURCE), "-o", str(draft)]
        try:
            failed, errors = run_compiler(command, compiler.limit_s)
        except (OSError, subprocess.TimeoutExpired) as error:
            late = f"it timed out after {compiler.limit_s:g} seconds"
            why = late if isinstance(error, subprocess.TimeoutExpired) else error
            raise NoKernels(f"{name} could not compile the kernels: {why}") from error
        if failed:
            lines = errors.strip().splitlines() or [f"no reason was given (exit code {failed})"]
            reason = next((line for line in lines if "error" in line), lines[-1])
            raise NotCompiled(f"{name} could not compile the kernels: {reason}")
        # on the disk before it has its name: calling into half a library would crash the process
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        _share(draft)
        draft.rename(path)
        _remove_others(path, target, kept=1 if _is_beside_sources(path) else KEPT_IN_CACHE)
    _keep_in_cache(path, target)
    return path


def _keep_in_cache(library: Path, target: str) -> None:
    """Copies a library to where other checkouts and later installations of the same sources find it."""
    if (kept := candidates(target)[-1]) == library:
        return
    with suppress(OSError):  # the library itself is there
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = kept.with_suffix(f".{os.getpid()}.new")
        shutil.copy2(library, draft)
        draft.replace(kept)
        _remove_others(kept, target, kept=KEPT_IN_CACHE)


def _remove_others(library: Path, target: str, *, kept: int) -> None:
    """Removes older libraries of a variant; the newest stay, `kept` in all with this one."""
    others = [path for path in library.parent.glob(f"kernels-{target}-*.so") if path != library]
    for old in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[kept - 1 :]:
        old.unlink(missing_ok=True)


def _is_beside_sources(library: Path) -> bool:
    return library.parent.parent == SOURCES.parent


def _share(library: Path) -> None:
    """Lets users who may read the sources load the library beside them, whatever the umask is."""
    if not _is_beside_sources(library):
        return
    readers = MAIN_SOURCE.stat().st_mode & 0o044
    library.chmod(0o600 | readers)
    library.parent.chmod(0o700 | readers | readers >> 2)


def _writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK)


def main() -> int:
    """Compiles the variants that this machine can run; says where they are.

    With `--best` it compiles the first that the compiler knows, with `--all` those of other machines, too.
    With `--fetch-compiler` a machine without a C++ compiler fetches one for the time being.

    Returns 0 also where there are none, so that an installation goes on; with `--all`, which is for images
    and wheels that run on other machines, 1 when a variant is missing.
    """
    every, best = "--all" in sys.argv[1:], "--best" in sys.argv[1:]
    names = list(TARGETS) if every and can_have_kernels() else targets()
    if not names:
        print("No kernels for this machine (Linux on x86-64 with AVX2): it serves with the plain path.")
    if best:  # as in `ensure`: those after the first that is there are not needed
        names = names[: next((at for at, name in enumerate(names, 1) if find(name)), len(names))]
    problems = _compile_missing(names, fetch="--fetch-compiler" in sys.argv[1:], only_first=best)
    for name in names:
        if found := _beside_sources(name) if every else find(name):
            print(f"Kernels for {name}: {found}")
            if best:
                break
        else:
            print(f"No kernels for {name}: {problems[name]}.")
    if problems and not any(find(name) for name in targets()):
        print("It serves with the plain path, several times slower.")
    return int(every and bool(problems))


def _compile_missing(names: Sequence[str], *, fetch: bool, only_first: bool) -> dict[str, str]:
    """Compiles variants that are not there, or the first that the compiler knows; returns what went wrong."""
    missing, problems = [name for name in names if find(name) is None], dict[str, str]()
    try:
        with _compiler(fetch=fetch, needed=bool(missing)) as compiler:
            for name in missing:
                try:
                    with compile_clock(name):
                        ensure(name, compiler)
                except NotCompiled as error:
                    problems[name] = str(error)
                else:
                    if only_first:
                        break
    except (NoKernels, NoZig) as error:
        failed = (name for name in missing if name not in problems and find(name) is None)
        problems |= dict.fromkeys(failed, str(error))
    return problems


def _beside_sources(target: str) -> Path | None:
    """The library of a variant, copied from the cache to where images and wheels take it from."""
    found, path = find(target), candidates(target)[0]
    if found is not None and found != path:
        path.parent.mkdir(exist_ok=True)
        shutil.copy2(found, path)
        _share(path)
    return path if found is not None else None


@contextmanager
def _compiler(*, fetch: bool, needed: bool) -> Iterator[Compiler | None]:
    """The compiler of this machine, else one that is fetched if that is allowed; None if none is needed."""
    if not needed:
        yield None
        return
    try:
        own = own_compiler()
    except NoCompiler:
        if not fetch:
            raise
        with temporary_compiler() as command:
            yield Compiler(command, OPTIONS, COMPILE_LIMIT_S)
        return
    yield own


if __name__ == "__main__":
    sys.exit(main())
