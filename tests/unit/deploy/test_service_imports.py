"""Each service starts with what its image installs: it imports no distribution beyond its dependencies."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest

from tests.kits.servers import ROOT

PROJECT = "ryzanstein"
CONTROL = frozenset({"tracing", "oidc"})  # extras that every image has, see deploy/Dockerfile
EXTRAS = {
    "gateway": CONTROL,
    "router": CONTROL,
    "kvstate": CONTROL,
    "worker": CONTROL | {"worker"},
}
# Begins a process in which some modules cannot be found; libraries that could use them do without.
IMPORT = """
import importlib, json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

hidden = set(json.load(sys.stdin))
sys.meta_path.insert(0, Hidden())
importlib.import_module(sys.argv[1])
"""


def distributions_of(extras: frozenset[str]) -> set[str]:
    """The distributions that are installed with the project and these extras, normalized."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = [
        *project["dependencies"],
        *(line for one in extras for line in project["optional-dependencies"][one]),
    ]
    found, waiting = set[str](), [("", extras)]
    while waiting:
        name, wanted = waiting.pop()
        try:
            lines = own if not name else requires(name) or []
        except PackageNotFoundError:  # for another platform
            continue
        for line in lines:
            need, _, marker = line.partition(";")
            extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
            if extra is not None and extra[1] not in wanted:
                continue
            parts = re.fullmatch(r"\s*([\w.-]+)\s*(?:\[([^]]*)])?.*", need)
            assert parts is not None, line
            other = normalized(parts[1])
            if other not in found:
                found.add(other)
                waiting.append((other, frozenset((parts[2] or "").replace(" ", "").split(","))))
    return found


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("service", EXTRAS)
def test_a_service_imports_what_its_image_has(service: str) -> None:
    known = distributions_of(EXTRAS[service]) | {PROJECT}
    assert {"nats-py", "msgspec", "structlog"} <= known
    owners = packages_distributions()
    hidden = [module for module, names in owners.items() if not {normalized(one) for one in names} & known]
    assert "pytest" in hidden
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, f"services.{service}.__main__"],
        input=json.dumps(hidden), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
