"""The changelog's newest release is the version that pyproject.toml declares and `ryz version` prints."""

import re
import tomllib
from pathlib import Path

from typer.testing import CliRunner

from cli.__main__ import app

ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
_, UNRELEASED, RELEASE, *_ = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)


def test_the_changelog_begins_with_what_is_unreleased_and_the_declared_version() -> None:
    assert UNRELEASED.startswith("Unreleased\n")
    assert RELEASE.split()[0] == VERSION


def test_ryz_version_prints_the_declared_version() -> None:
    assert CliRunner().invoke(app, ["version"]).stdout == f"ryzanstein {VERSION}\n"


def test_a_release_is_described_in_forty_lines() -> None:
    assert len(f"## {RELEASE}".splitlines()) <= 40
