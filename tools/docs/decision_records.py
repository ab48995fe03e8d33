"""Checks that each decision record has at most 400 words: `python -m tools.docs.decision_records`.

A record states context, choice and price. Figures belong to docs/performance.md, manuals to their own pages.
"""

import sys
from pathlib import Path

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "decisions"
MOST_WORDS = 400


def too_long(folder: Path) -> list[str]:
    """One line for each record of the folder with more words than allowed."""
    counts = {path: len(path.read_text().split()) for path in sorted(folder.glob("*.md"))}
    return [
        f"docs/decisions/{path.name}: {words} words, at most {MOST_WORDS}: move figures to performance.md"
        for path, words in counts.items()
        if words > MOST_WORDS
    ]


def main() -> None:
    """Fail with the records that are too long."""
    if found := too_long(RECORDS):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
