"""What a wheel holds beside the code: kernels and the demo model, which `ryz up` finds without a checkout."""

import re
import tomllib
from importlib.metadata import PackagePath
from pathlib import Path
from typing import Any

import pytest

from cli.stack import model_dir
from services.worker.engine.native import build

ROOT = Path(__file__).parents[3]
SETUPTOOLS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_kernels_and_the_demo_model_are_in_it() -> None:
    (library,) = [path for path in build.candidates("avx2") if path.is_relative_to(ROOT)]
    package = build.SOURCES.parent
    patterns = SETUPTOOLS["package-data"]["services.worker.engine.native"]
    assert any(library.relative_to(package).match(pattern) for pattern in patterns)
    (pattern,) = SETUPTOOLS["data-files"]["share/ryzanstein/models/demo"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in ROOT.glob(pattern)
    }


def test_the_image_compiles_them_with_all_that_the_compilation_imports() -> None:
    """The stage of the kernels has few files, so that a change of others does not compile anew."""
    recipe = (ROOT / "deploy" / "Dockerfile").read_text()
    (stage,) = re.findall(r"^FROM base AS kernels\n(.*?)^FROM", recipe, re.M | re.S)
    copied = {word for line in re.findall(r"^COPY (.*)", stage, re.M) for word in line.split()[:-1]}
    for file in [word for word in copied if word.endswith(".py")]:
        imported = re.findall(r"^from (services[\w.]+) import", (ROOT / file).read_text(), re.M)
        assert {f"{name.replace('.', '/')}.py" for name in imported} <= copied, file


def test_every_file_of_the_pages_is_in_it() -> None:
    package = ROOT / "services/gateway/pages"
    patterns = SETUPTOOLS["package-data"]["services.gateway.pages"]
    packed = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    assert packed == {path for path in (package / "static").rglob("*") if path.is_file()}


def test_the_demo_model_is_found_where_a_wheel_has_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        """A distribution below `tmp_path`."""

        @property
        def files(self) -> list[PackagePath]:
            config = PackagePath("../share/ryzanstein/models/demo/config.json")
            config.dist = self  # type: ignore[assignment]
            return [PackagePath("cli/__main__.py"), config]

        def locate_file(self, path: PackagePath) -> Path:
            return tmp_path / "lib" / path

    monkeypatch.setattr(model_dir, "__file__", str(tmp_path / "lib" / "cli" / "stack" / "model_dir.py"))
    monkeypatch.setattr(model_dir, "distribution", lambda _: Installed())
    (tmp_path / "lib").mkdir()
    assert model_dir.demo_model() == tmp_path / "share" / "ryzanstein" / "models" / "demo"
