"""Compiled modules are those of the sources as they are, and what mypyc gets wrong is refused."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from shared import compiled_modules
from shared.compiled_modules import CompiledModules, build_of_sources, find_build, use_in_service, used_build
from tests.kits.servers import ROOT
from tools import check_compiled, compile_modules

TINY = '''"""Adds."""


def add(first: int, second: int) -> int:
    """The sum."""
    return first + second
'''


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one module."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").touch()
    (tmp_path / "shared" / "tiny.py").write_text(TINY)
    monkeypatch.setattr(compiled_modules, "ROOT", tmp_path)
    monkeypatch.setattr(compiled_modules, "BUILDS", tmp_path / "build" / "compiled")
    monkeypatch.setattr(compile_modules, "ROOT", tmp_path)
    monkeypatch.delenv("RYZ_COMPILED", raising=False)
    return tmp_path


def test_a_build_is_used_until_a_source_changes(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_build() is None
    build = build_of_sources()
    build.mkdir(parents=True)
    assert find_build() == build
    (tree / "shared" / "tiny.py").write_text(TINY.replace("sum", "total"))
    assert find_build() is None
    (tree / "shared" / "tiny.py").write_text(TINY)
    assert find_build() == build
    monkeypatch.setenv("RYZ_COMPILED", "off")
    assert find_build() is None


def test_only_services_use_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_of_sources().mkdir(parents=True)
    monkeypatch.setattr(
        sys, "meta_path", [one for one in sys.meta_path if not isinstance(one, CompiledModules)]
    )
    for command, used in (
        (["python", "-m", "pytest"], None),
        (["python", "-P", "-m", "services.router"], True),
    ):
        monkeypatch.setattr(sys, "orig_argv", command)
        use_in_service()
        use_in_service()
        assert used_build() == (used and build_of_sources())
    assert len([one for one in sys.meta_path if isinstance(one, CompiledModules)]) == 1


@pytest.mark.skipif(bool(compile_modules.compiler_fault()), reason=compile_modules.compiler_fault())
def test_a_module_is_compiled_and_found(tree: Path) -> None:
    (tree / "pyproject.toml").write_text("[tool.mypy]\nexplicit_package_bases = true\n")
    code = """
import sys
from pathlib import Path
from shared import compiled_modules
from tools import check_compiled, compile_modules
compiled_modules.ROOT = compile_modules.ROOT = Path(sys.argv[1])
compile_modules.build(["shared/tiny.py"], Path(sys.argv[1]) / "new")
"""
    command = [sys.executable, "-c", code, str(tree)]
    subprocess.run(command, check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"})
    found = CompiledModules(tree / "new" / "lib").find_spec("shared.tiny")
    assert found is not None
    assert found.origin == str(tree / "new" / "lib" / "shared" / f"tiny{compiled_modules.SUFFIX}")
    assert CompiledModules(tree / "new" / "lib").find_spec("shared.codec") is None
    assert CompiledModules(tree / "new" / "lib").find_spec("json") is None
    code = """
import sys
from pathlib import Path
from shared.compiled_modules import CompiledModules
sys.meta_path.insert(0, CompiledModules(Path(sys.argv[1])))
from shared.tiny import add
try:
    add("1", "2")
except TypeError as error:
    print(add(2, 3), error)
"""
    command = [sys.executable, "-c", code, str(tree / "new" / "lib")]
    said = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    assert said == "5 int object expected; got str\n"


def test_a_build_of_other_modules_is_made_again(tree: Path) -> None:
    """The list may have changed, and no source."""
    suffix = compiled_modules.SUFFIX
    build = build_of_sources()
    (build / "shared").mkdir(parents=True)
    (build / f"{compiled_modules.LIBRARY}__mypyc{suffix}").touch()
    (build / "shared" / f"tiny{suffix}").touch()
    assert not compile_modules.is_whole(build, ["shared/tiny.py"])
    (build / "level").write_text("0")
    assert compile_modules.is_whole(build, ["shared/tiny.py"])
    assert not compile_modules.is_whole(build, ["shared/tiny.py"], level=2), "services would be slower"
    (build / "level").write_text("2")
    assert compile_modules.is_whole(build, ["shared/tiny.py"], level=2)
    assert not compile_modules.is_whole(build, ["shared/tiny.py", "shared/other.py"])
    assert not compile_modules.is_whole(build, [])
    assert not compile_modules.is_whole(tree / "nowhere", ["shared/tiny.py"])


def test_classes_that_do_not_fit_together_are_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = type("Base", (), {"__module__": "shared.tiny", "__mypyc_attrs__": ()})
    between = type("Between", (base,), {"__module__": "shared.source"})
    top = type("Top", (between,), {"__module__": "shared.tiny", "__mypyc_attrs__": ()})
    module = ModuleType("shared.tiny")
    module.__dict__.update(Base=base, Top=top)
    monkeypatch.setattr(check_compiled, "ROOT", tree)
    faults = check_compiled.faults_of(module, ["shared.tiny"])
    assert any("Between" in fault and "cannot inherit" in fault for fault in faults)
    assert any("Top" in fault and "super() would skip" in fault for fault in faults)
    text = "@mypyc_attr(allow_interpreted_subclasses=True)\nclass Base:\n    pass\n"
    (tree / "shared" / "tiny.py").write_text(text)
    assert not any("Base'>" in fault for fault in check_compiled.faults_of(module, ["shared.tiny"]))


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no C compiler" in compile_modules.compiler_fault()


def test_what_mypyc_gets_wrong_is_refused(tree: Path) -> None:
    (tree / "shared" / "tiny.py").write_text("""
async def both(one, other):
    try:
        first, second = await asyncio.gather(one, other)
    except KeyError as error:
        print(error)
    except ValueError as error:
        print(error)
    finally:
        await one
    await asyncio.gather(*(one, other))


def one_kind():
    try:
        print()
    except KeyError as error:
        print(error)
    try:
        print()
    except KeyError as error:
        print(error)


class Names:
    def __init__(self):
        self._real = {}
        self._really = {}
""")
    assert compile_modules.hazards("shared/tiny.py") == [
        "shared/tiny.py:4: arguments of gather that are not starred",
        "shared/tiny.py:7: an error called error again, of another type",
        "shared/tiny.py:10: awaited in a handler or a finally block",
        "shared/tiny.py:27: an attribute called _real, which C has for itself",
    ]


def test_the_list_of_modules_names_what_there_is() -> None:
    names = compile_modules.modules()
    assert all((ROOT / name).is_file() for name in [*names, *compile_modules.LEFT_OUT])
    assert all(any(ROOT.glob(pattern)) for pattern in compile_modules.MODULES)
    assert "services/worker/domain/scheduling/scheduler.py" in names
    assert "services/router/settings.py" not in names
    assert "services/router/state.py" not in names  # has a struct of msgspec
    assert "services/gateway/formats/chat/schema.py" not in names  # has models of pydantic
    assert "shared/client/generation/attempts.py" in names  # only an argument of it is of settings
    assert not [fault for name in names for fault in compile_modules.hazards(name)]
