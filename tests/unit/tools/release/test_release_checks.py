"""A release is refused where its tag, tree or changelog are not as they have to be."""

import subprocess
from pathlib import Path

import pytest

from tools.release.checks import NoRelease, checked_release, section_of


def git(root: Path, *arguments: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *own, *arguments], check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose version 1.2.0 has its tag."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0\n\n- New.\n\n## 1.1.0\n\n- Old.\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    git(tmp_path, "tag", "--annotate", "v1.2.0", "--message", "1.2.0")
    return tmp_path


def test_a_clean_tree_with_the_tag_of_its_version_is_a_release(root: Path) -> None:
    found = checked_release(root)
    assert (found.version, found.changes) == ("1.2.0", "- New.")
    assert len(found.commit) == 40
    assert found.made_s > 1_600_000_000


def test_a_tree_with_changes_is_refused(root: Path) -> None:
    (root / "new.py").touch()
    with pytest.raises(NoRelease, match=r"(?s)the tree has changes.*new\.py"):
        checked_release(root)


def test_another_tag_and_none_are_refused(root: Path) -> None:
    (root / "pyproject.toml").write_text('[project]\nversion = "1.3.0"\n')
    git(root, "commit", "--all", "--quiet", "--message", "next")
    with pytest.raises(NoRelease, match=r"version 1\.3\.0 .*it has no tag.*git tag -a v1\.3\.0"):
        checked_release(root)
    git(root, "tag", "v1.2.9")
    with pytest.raises(NoRelease, match=r"its tags are v1\.2\.9"):
        checked_release(root)


@pytest.mark.parametrize(
    ("changelog", "says"),
    [
        ("## 1.2.0\n", "no section"),
        ("## 1.1.0\n\n- Old.\n", "no section"),
        ("## Unreleased\n\n- Newer.\n\n## 1.2.0\n\n- New.\n", "put them under"),
    ],
)
def test_a_changelog_without_the_version_is_refused(changelog: str, says: str) -> None:
    with pytest.raises(NoRelease, match=says):
        section_of(changelog, "1.2.0")


def test_an_empty_section_for_what_comes_next_is_none() -> None:
    assert section_of("## Unreleased\n\n## 1.2.0 (2026-12-01)\n\n- New.\n", "1.2.0") == "- New."
