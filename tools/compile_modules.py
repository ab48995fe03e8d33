"""Compiles the modules that each request and each step passes with mypyc (decision 0058): `make compile`.

Run as `python -m tools.compile_modules`; it needs mypy, setuptools and a C compiler. All or nothing: a build
is moved to its directory when each of its modules could be imported. `--level 0` is for tests: the C compiler
does not optimise and takes less than half of the CPU time.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from mypyc.build import mypycify

from shared.compiled_modules import BUILDS, LIBRARY, ROOT, SUFFIX, build_of_sources
from tools.compiled_library import make_library

# Left out: packages' `__init__.py`, and what stands in `LEFT_OUT`.
MODULES = (
    "services/gateway/admission/**/*.py",
    "services/gateway/answering/**/*.py",
    "services/gateway/formats/chat/*.py",
    "services/gateway/formats/fields/*.py",
    "services/gateway/formats/text/*.py",
    "services/gateway/transports/http/*.py",
    "services/gateway/transports/http/routes/formats.py",
    "services/router/*.py",
    "services/router/domain/**/*.py",
    "services/worker/domain/**/*.py",
    "services/worker/leader/engine_loop.py",
    "services/worker/leader/engine_state.py",
    "services/worker/leader/frame_publisher.py",
    "services/worker/leader/intake/*.py",
    "services/worker/leader/request_spans.py",
    "services/worker/leader/request_table.py",
    "services/worker/leader/sessions/*.py",
    "services/worker/leader/step_log.py",
    "services/worker/leader/token_output.py",
    "services/worker/null/*.py",
    "services/worker/telemetry/request_metrics.py",
    "shared/bus/broker/parser.py",
    "shared/bus/broker/publish_command.py",
    "shared/bus/nats_subscriptions.py",
    "shared/bus/delivery.py",
    "shared/bus/endpoint.py",
    "shared/bus/nats.py",
    "shared/bus/pending_replies.py",
    "shared/bus/subject.py",
    "shared/client/frame_dispatch.py",
    "shared/client/generation/**/*.py",
    "shared/client/running_streams.py",
    "shared/flow/*.py",
    "shared/identity.py",
    "shared/subjects.py",
    "shared/telemetry/histograms.py",
    "shared/telemetry/service_levels.py",
    "shared/telemetry/spans/request_trace.py",
    "shared/telemetry/timelines.py",
    "shared/telemetry/trace_context.py",
    "shared/web/plain_writes.py",
)
LEFT_OUT = {
    "services/gateway/formats/chat/format.py": "the class has its path, and mypyc a descriptor there",
    "services/gateway/formats/text/format.py": "the same",
    "services/gateway/formats/fields/answer_blocks.py": "formats that are not compiled inherit from it",
    "services/router/constants.py": "read at the start only",
    "services/router/domain/groups/fleet_limits.py": "settings, which are not compiled, inherit from it",
    "services/router/domain/policies/hybrid_limits.py": "the same",
    "services/worker/leader/intake/grammar_options.py": "the same",
    "services/worker/leader/sessions/record_limits.py": "the same",
    "services/gateway/transports/http/error_handlers.py": "not of the serving path",
    "services/gateway/transports/http/path_methods.py": "the same",
    "services/gateway/transports/http/upload.py": "the same",
    "services/gateway/transports/http/model_objects.py": "the same",
    "services/gateway/transports/http/stream_progress.py": "the same; it awaits in a finally block",
    "services/gateway/admission/operators.py": "the same",
    "services/gateway/admission/identity/assembly.py": "the same",
    "services/gateway/admission/identity/oidc_claims.py": "the same",
    "services/gateway/admission/identity/oidc_keys.py": "the same",
    "services/gateway/admission/identity/oidc_tokens.py": "the same",
    "services/gateway/admission/bodies/large.py": "mypyc has no asynchronous generators",
    "services/worker/domain/generation/session_cache.py": "its base is one of the next two",
    "services/worker/domain/generation/sized_entries.py": "generic dataclasses with slots fail when imported",
    "services/worker/domain/generation/tenant_entries.py": "the same",
    "services/worker/leader/sessions/records.py": "a tuple of `asyncio.gather` is a list",
    "services/worker/null/model.py": "tests inherit from its tokenizer",
}
_LEVEL_FILE = "level"  # in a build: how far the C compiler optimised it
_AWAITING = {("shared/bus/nats.py", "connect")}  # the coroutine of the task that awaits it is not compiled
# words of C with two underscores before them, one of which mypyc puts before the name of an attribute
_C_WORDS = {
    "_alignof",
    "_asm",
    "_complex",
    "_const",
    "_imag",
    "_inline",
    "_label",
    "_real",
    "_thread",
    "_typeof",
}
_UNCOMPILED_BASES = ("msgspec.Struct", "Settings")  # ends of the names of classes


def modules() -> list[str]:
    """The files that are compiled, from the root on."""
    found = {path.relative_to(ROOT).as_posix() for pattern in MODULES for path in ROOT.glob(pattern)}
    return sorted(name for name in found - LEFT_OUT.keys() if not _is_left_out(name))


def _is_left_out(name: str) -> bool:
    """Packages, commands, and what mypyc cannot compile: structs of msgspec, settings, uses of pydantic."""
    if name.endswith(("__init__.py", "__main__.py")):
        return True
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.ClassDef) and any(
            ast.unparse(base).endswith(_UNCOMPILED_BASES) for base in node.bases
        ):
            return True
        if isinstance(node, ast.ImportFrom | ast.Import):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            if any((module or "").partition(".")[0] == "pydantic" for module in imported):
                return True
    return False


def hazards(name: str) -> list[str]:
    """What mypyc would compile to something else than Python does, as `file:line: what`.

    - Two handlers in one function whose errors have one name share a variable of the first one's type.
    - The result of `asyncio.gather`, a list, has the type of a tuple unless its arguments are starred.
    - An attribute such as `_real` gets the name of a word of C.
    - What is awaited in a handler or in a `finally` block lets other tasks see the error meanwhile, and have
      it as the context of theirs, without end: compiled coroutines have no exception state of their own.
    """
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.Attribute) and node.attr in _C_WORDS:
            found.append((node.lineno, f"an attribute called {node.attr}, which C has for itself"))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found += _hazards_in(node, awaits_anywhere=(name, node.name) in _AWAITING)
    return [f"{name}:{line}: {what}" for line, what in sorted(set(found))]


def _hazards_in(
    function: ast.FunctionDef | ast.AsyncFunctionDef, awaits_anywhere: bool
) -> Iterator[tuple[int, str]]:
    kinds: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and node.name and node.type is not None:
            kind = ast.unparse(node.type)
            if kinds.setdefault(node.name, kind) != kind:
                yield node.lineno, f"an error called {node.name} again, of another type"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.gather":
            unstarred = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
            yield from [(node.lineno, "arguments of gather that are not starred")] * bool(unstarred)
        if isinstance(node, ast.Try) and not awaits_anywhere:
            blocks = [line for handler in node.handlers for line in handler.body] + node.finalbody
            for part in (part for line in blocks for part in ast.walk(line)):
                if isinstance(part, ast.Await | ast.AsyncWith | ast.AsyncFor | ast.Yield):
                    yield part.lineno, "awaited in a handler or a finally block"


def build(names: Iterable[str], into: Path, level: int = 2) -> None:
    """Compiles these files into a directory; raises what mypyc, the compiler or an import raises.

    Args:
        names: Files, from the root on.
        into: The directory; modules get into its `lib`.
        level: How far the C compiler optimises, 0 to 3.
    """
    os.chdir(ROOT)
    extensions = mypycify(
        ["--config-file", "pyproject.toml", *names],
        group_name=LIBRARY,
        multi_file=True,
        target_dir=str(into / "c"),
        opt_level=str(level),
        debug_level="0",
    )
    make_library(extensions, into)
    (into / "lib" / _LEVEL_FILE).write_text(str(level))


def check(names: Iterable[str], build_dir: Path) -> None:
    """Imports each module in a process of its own, and each service.

    Raises:
        CalledProcessError: `check_compiled.py` found a fault, and has said which.
    """
    wanted = [name.removesuffix(".py").replace("/", ".") for name in names]
    command = [sys.executable, "-m", "tools.check_compiled", str(build_dir), *wanted]
    subprocess.run(command, check=True, cwd=ROOT)


def compiler_fault() -> str:
    """Why nothing can be compiled here, and the remedy; empty if it can."""
    compiler = str(sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler}, which this Python was built with: install it"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.is_file() else f"{header} is missing: install Python's headers (python3-dev)"


def is_whole(build_dir: Path, names: Iterable[str], level: int = 0) -> bool:
    """Whether a build has these modules and no others, beside the library, and is optimised so far."""
    level_file = build_dir / _LEVEL_FILE
    if not level_file.is_file() or int(level_file.read_text()) < level:
        return False
    files = {path.relative_to(build_dir).as_posix() for path in build_dir.rglob(f"*{SUFFIX}")}
    return files == {f"{LIBRARY}__mypyc{SUFFIX}", *(name.removesuffix(".py") + SUFFIX for name in names)}


def main() -> int:
    """Makes the build of the sources as they are, unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", type=int, default=2, help="how far the C compiler optimises")
    level: int = parser.parse_args().level
    wanted, began, names = build_of_sources(), time.monotonic(), modules()
    if is_whole(wanted, names, level):
        print(f"compiled already: {wanted}")
        return 0
    faults = [fault for name in names for fault in hazards(name)]
    faults += ["mypyc compiles these to something else than Python does"] * bool(faults)
    faults += [fault for fault in [compiler_fault()] if fault]
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    print(f"compiling {len(names)} modules; it takes a minute or two ...", flush=True)
    BUILDS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILDS) as path:
        made = Path(path) / "lib"
        build(names, Path(path), level)
        check(names, made)
        assert is_whole(made, names), "mypyc made other modules than were asked for"
        for old in BUILDS.iterdir():
            if old.name != Path(path).name:
                shutil.rmtree(old)
        made.rename(wanted)
    print(f"compiled {len(names)} modules in {time.monotonic() - began:.0f} s: {wanted}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
