"""Writes a generated page, or compares it: what all generators of pages share."""

import sys
from pathlib import Path


def write_page(path: Path, text: str) -> None:
    """Writes a page; with `--check` in the command line it ends the process if the page is out of date.

    Any other argument ends it with the usage.
    """
    if not sys.argv[1:]:
        path.write_text(text)
    elif sys.argv[1:] != ["--check"]:
        sys.exit("usage: python -m tools.docs.NAME [--check]")
    elif not path.exists() or path.read_text() != text:
        sys.exit(f"{path} is out of date: run `python -m tools.docs`")
