"""The bill of materials of this environment, made with the command of `make sbom` and the images."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parents[3]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_it_has_every_dependency_with_the_version_that_is_installed(tmp_path: Path) -> None:
    bill = tmp_path / "sbom.json"
    command = [
        sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", str(ROOT / "pyproject.toml"),
        "--output-reproducible", "--no-validate", "--of", "JSON", "-o", str(bill), sys.executable,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(bill.read_text())
    # to validate all components takes 20 s
    validator = JsonStrictValidator(SchemaVersion.from_version(document["specVersion"]))
    assert validator.validate_str(json.dumps(document | {"components": document["components"][:5]})) is None
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "ryzanstein"
    listed = {canonical(one["name"]): one for one in document["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["worker"]
    names = {canonical(re.split(r"[\[<>=!~; ]", requirement)[0]) for requirement in wanted}
    assert len(names) > 15
    for name in names:
        assert listed[name]["version"] == metadata.version(name)
        assert listed[name]["purl"].startswith(f"pkg:pypi/{name}@")
    assert canonical("nats-py") in listed
    assert str(ROOT) not in bill.read_text(), "no path of the machine that made it"


def test_images_and_make_use_the_same_command() -> None:
    options = "environment --pyproject pyproject.toml --output-reproducible"
    for file in ("Makefile", "deploy/Dockerfile"):
        text = (ROOT / file).read_text()
        assert options in text, file
    recipe = (ROOT / "deploy" / "Dockerfile").read_text()
    assert recipe.count("/srv/sbom.json /srv/ryzanstein/sbom.json") == 3
