"""`ryzanstein-client`, built, and installed beside a package `shared` of its user."""

import asyncio
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.kits.gateway.outside_stack import outside_stack
from tools.client_package.__main__ import ForbiddenImport, build, checked_closure, write_tree
from tools.client_package.rewriting import rewrite_imports


def unpack_wheel(wheel: Path, site: Path) -> None:
    """Installs a wheel of plain Python into a folder of packages, as installers do."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def link_needed(wheel: Path, site: Path) -> set[str]:
    """Links what the wheel needs, directly or not, from this environment; returns the names."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith("/METADATA"))
        text = archive.read(name).decode()
    waiting = [Requirement(one) for one in re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE)]
    linked: set[str] = set()
    while waiting:
        needed = waiting.pop()
        marker: Any = needed.marker
        if needed.name in linked or (marker is not None and not marker.evaluate({"extra": ""})):
            continue
        linked.add(needed.name)
        found = distribution(needed.name)
        _link(found, site)
        waiting += [Requirement(one) for one in found.requires or ()]
    return linked


def _link(found: Distribution, site: Path) -> None:
    """Links its packages, modules and metadata; packages that several share are merged."""
    for file in found.files or ():
        if file.parts[0] == ".." or "__pycache__" in file.parts:
            continue
        path = site.joinpath(*file.parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.symlink_to(Path(str(found.locate_file(file))))


@dataclass(frozen=True, slots=True)
class CleanPython:
    """A virtual environment; `needed` are the distributions that the wheel brings along."""

    python: Path
    site: Path
    needed: frozenset[str]


def clean_python(wheel: Path, folder: Path) -> CleanPython:
    """Makes a virtual environment with a wheel."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    unpack_wheel(wheel, site)
    return CleanPython(folder / "bin" / "python", site, frozenset(link_needed(wheel, site)))


USER = """
import asyncio
import sys

from ryzanstein_client import InferenceClient, RyzError, TokenizeQuery, chat_request, text_request
from shared import OWN  # a package of the user's own


async def main(url: str, tenant: str) -> None:
    async with InferenceClient.connect(url, tenant=tenant) as client:
        (card,) = await client.list_models()
        request = chat_request(card.name, "Hello!", max_tokens=8, temperature=0.0)
        async with client.submit(request, timeout_s=20) as stream:
            async for deltas in stream:
                print("".join(delta.text for delta in deltas), end="", flush=True)
        print()
        whole = await client.complete(text_request(card.name, "Once", max_tokens=4), timeout_s=20)
        print(len(whole.choices[0].token_ids), stream.usage.completion_tokens, OWN)
        print((await client.tokenize(TokenizeQuery(model=card.name, prompt="hello"), timeout_s=5)).count)
        try:
            await client.complete(chat_request("no-such", "x"), timeout_s=5)
        except RyzError as error:
            print(error.code)


asyncio.run(main(sys.argv[1], sys.argv[2]))
names = ("torch", "fastapi", "uvicorn", "redis", "structlog", "prometheus_client", "grpc", "numpy")
print([name for name in names if name in sys.modules])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> CleanPython:
    """An environment with the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("client")
    wheel, sdist = build(folder / "dist")
    with tarfile.open(sdist) as archive:
        names = {Path(*Path(name).parts[1:]).as_posix() for name in archive.getnames()}
    assert {"ryzanstein_client/py.typed", "ryzanstein_client/__init__.py", "pyproject.toml"} <= names
    made = clean_python(wheel, folder / "venv")
    assert not made.needed & {"torch", "fastapi", "redis", "structlog", "opentelemetry-sdk"}
    assert not (made.site / "shared").exists()
    return made


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of the user, with a package `shared` of its own."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "shared").mkdir()
    (folder / "shared" / "__init__.py").write_text('OWN: str = "mine"\n')
    (folder / "program.py").write_text(USER)
    return folder


async def test_it_generates_beside_a_package_of_that_name(
    installed: CleanPython, project: Path, tmp_path: Path
) -> None:
    async with outside_stack(tmp_path) as stack:
        url = stack.world.broker.url(stack.world.a.caller.user)
        process = await asyncio.create_subprocess_exec(
            str(installed.python), str(project / "program.py"), url, "tenant-a",
            cwd=project, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    answer, counts, tokens, code, forbidden = out.decode().splitlines()
    assert len(answer) == 8
    assert (counts, tokens, code, forbidden) == ("4 8 mine", "5", "model_not_found", "[]")


def test_a_file_of_its_user_is_typed(installed: CleanPython, project: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from ryzanstein_client import chat_request\nchat_request(7, None)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=",
         f"--cache-dir={tmp_path / 'cache'}", f"--python-executable={installed.python}",
         str(project / "program.py"), str(wrong)],
        capture_output=True, text=True, check=False, cwd=project, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stdout + done.stderr
    assert all("wrong.py" in line and "[arg-type]" in line for line in lines), done.stdout


def test_what_a_client_must_not_bring_along_is_refused(tmp_path: Path) -> None:
    assert {"shared.client.inference_client", "shared.bus.nats"} <= set(checked_closure().files)
    tree = tmp_path / "tree"
    (tree / "shared" / "client").mkdir(parents=True)
    (tree / "shared" / "__init__.py").touch()
    (tree / "shared" / "errors.py").write_text("import json\nimport torch\n")
    with pytest.raises(ForbiddenImport, match=r"'torch', which shared.errors import"):
        write_tree(tmp_path / "out", tree)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("from shared import subjects\n", "from ryzanstein_client import subjects\n"),
        ("from shared.bus import (\n    Bus,\n)\n", "from ryzanstein_client.bus import (\n    Bus,\n)\n"),
        ("from sharedness import x\nshared = 1\n", "from sharedness import x\nshared = 1\n"),
        ('"""See `shared.errors`."""\n', '"""See `ryzanstein_client.errors`."""\n'),
        ("import structlog\n", "from ryzanstein_client import standard_logs as structlog\n"),
        ("def f():\n    from shared.a import b\n", "def f():\n    from ryzanstein_client.a import b\n"),
    ],
)
def test_imports_are_renamed_in_place(source: str, wanted: str) -> None:
    assert rewrite_imports(source, "m") == wanted


@pytest.mark.parametrize("source", ["import shared.bus\n", "x = __import__('shared.bus')\n"])
def test_what_cannot_be_renamed_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match=r"^m:1: "):
        rewrite_imports(source, "m")
