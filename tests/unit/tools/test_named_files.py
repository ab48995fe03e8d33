"""The check of names in prose: it finds each kind of wrong name, and takes right ones and foreign ones."""

from pathlib import Path

import pytest

from tools.docs import named_files
from tools.docs.named_files import NamedFiles

PAGE = """# A page

## Where a `name` is, exactly

See [the decision](decisions/0007-one.md), [above](#where-a-name-is-exactly) and decision 0007.
"""


@pytest.fixture
def names(tmp_path: Path) -> NamedFiles:
    for path, text in {
        "services/worker/leader/loop.py": (
            '"""A loop."""\nimport json\n\n\nclass Base:\n    limit = 1\n\n\nclass Loop(Base):\n'
            "    def __init__(self):\n        self.steps = 0\n\n    def run(self): ...\n"
        ),
        "services/worker/leader/native/ops.h": "",
        "docs/page.md": PAGE,
        "docs/decisions/0007-one.md": "# 0007 One\n",
        "models/demo/config.json": "{}",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return NamedFiles(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "services/worker/leader/loop.py",
        "leader/loop.py",
        "loop.py",
        "leader/",
        "services/worker/",
        "native/ops.h",
        "lo*.py",
        "loop.py::run",
        "loop.py::Loop",
        "services.worker.leader.loop",
        "services.worker.leader.loop.Loop",
        "python -m services.worker.leader.loop",
        "Loop.run",
        "Loop.steps",
        "Loop.limit",
        "/v1/sessions",
        "text/event-stream",
        "config.json",
        "msgspec.Struct",
        "services/<name>/",
        "https://example.org/loop.md",
    ],
)
def test_names_that_exist_or_are_not_ours_are_taken(names: NamedFiles, name: str) -> None:
    assert list(names.unresolved(f"It is in `{name}`.")) == []


@pytest.mark.parametrize(
    "name",
    [
        "services/worker/leader/gone.py",
        "services/worker/gone/",
        "leader/gone/",
        "gone.py",
        "native/gone.h",
        "go*.py",
        "loop.py::gone",
        "models/gone/config.json",
        "services.worker.gone",
        "services.worker.leader.loop.Gone",
        "Loop.gone",
    ],
)
def test_a_wrong_name_is_found(names: NamedFiles, name: str) -> None:
    assert list(names.unresolved(f"It is in `{name}`.")) == [name]


def test_links_and_sections_are_followed(names: NamedFiles) -> None:
    assert list(names.broken_links("docs/page.md", PAGE)) == []
    wrong = "[a](gone.md) [b](#gone) [c](decisions/0007-one.md#gone) [d](https://example.org/gone.md)"
    assert list(names.broken_links("docs/page.md", wrong)) == [
        "gone.md",
        "#gone",
        "decisions/0007-one.md#gone",
    ]


def test_a_decision_without_a_record_is_found(names: NamedFiles) -> None:
    assert list(names.missing_decisions("decision 0007, and decision 0099")) == ["decision 0099"]


def test_pages_and_docstrings_are_read_and_fences_are_not(names: NamedFiles) -> None:
    assert names.problems() == []
    (names.root / "docs/page.md").write_text("```\n`gone.py`\n```\n`lost.py`\n")
    (names.root / "services/worker/leader/loop.py").write_text('def run():\n    """As `gone.py`."""\n')
    assert NamedFiles(names.root).problems() == [
        "docs/page.md: lost.py",
        "services/worker/leader/loop.py:2: gone.py",
    ]


def test_the_command_fails_with_the_names(names: NamedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    (names.root / "README.md").write_text("See `docs/gone.md`.\n")
    monkeypatch.setattr(named_files, "ROOT", names.root)
    with pytest.raises(SystemExit, match=r"README\.md: docs/gone\.md"):
        named_files.main()
