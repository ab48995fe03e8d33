"""What has to be true before a release is made: a clean tree, a tag that is the version, a written changelog.

Reads git and files; builds nothing.
"""

import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

SECTION = re.compile(r"^## (\S+).*$", re.MULTILINE)


class NoRelease(Exception):
    """A release cannot be made; the text says what to do about it."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release that may be made.

    Attributes:
        made_s: The time of its commit, in seconds since 1970: the time of everything that is built.
        changes: Its section of the changelog.
    """

    version: str
    commit: str
    made_s: int
    changes: str


def checked_release(root: Path) -> Release:
    """Return the release of the commit that is checked out.

    Raises:
        NoRelease: The tree has changes, the commit has no tag of its version, or the changelog no section.
    """
    version = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    if changes := _git(root, "status", "--porcelain"):
        raise NoRelease(f"the tree has changes; commit them, or take a clean clone:\n{changes}")
    tags = _git(root, "tag", "--points-at", "HEAD").split()
    if f"v{version}" not in tags:
        found = f"its tags are {', '.join(tags)}" if tags else "it has no tag"
        raise NoRelease(
            f"this commit is not the release of version {version} (pyproject.toml): {found}. Check out the "
            f"tag, or make it: `git tag -a v{version}`"
        )
    commit, made = _git(root, "log", "-1", "--format=%H %ct").split()
    return Release(version, commit, int(made), section_of((root / "CHANGELOG.md").read_text(), version))


def section_of(changelog: str, version: str) -> str:
    """Return what a changelog says of a version, without its heading.

    Raises:
        NoRelease: It says nothing, or has newer changes that are in no version.
    """
    parts = SECTION.split(changelog)
    sections: dict[str, str] = dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))
    if sections.get("Unreleased"):
        raise NoRelease(f"CHANGELOG.md has changes under `## Unreleased`: put them under `## {version}`")
    if not sections.get(version):
        raise NoRelease(f"CHANGELOG.md has no section `## {version}`")
    return str(sections[version])


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoRelease(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout.strip()
