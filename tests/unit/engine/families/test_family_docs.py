"""docs/models.md lists every architecture, and its example of a family is the one that runs."""

import re
from pathlib import Path

from services.worker.engine.config.families import arcee
from services.worker.engine.config.families.registry import FAMILIES
from services.worker.gguf.config import ARCHITECTURES

PAGE = (Path(__file__).parents[4] / "docs/models.md").read_text()


def test_all_architectures_are_in_the_table() -> None:
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \| (?:`([\w-]+)`)? ?\|", PAGE, re.MULTILINE)
    assert {directory for directory, _ in rows} == set(FAMILIES)
    assert {gguf for _, gguf in rows} - {""} == set(ARCHITECTURES)


def test_the_example_is_the_family() -> None:
    assert arcee.__file__ is not None
    source = Path(arcee.__file__).read_text()
    assert source[source.index("def _arcee") :].strip() in PAGE
    assert len(source.splitlines()) < 60
