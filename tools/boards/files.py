"""Writes deploy/grafana/*.json; with `--check`, fails when one is out of date or is no board of ours."""

import sys
from pathlib import Path

from tools.boards.board import Board
from tools.boards.failures import failures
from tools.boards.fleet import fleet
from tools.boards.group import group
from tools.boards.kv import kv
from tools.boards.levels import levels

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana"


def boards() -> list[Board]:
    """Return all boards."""
    return [fleet(), group(), kv(), levels(), failures()]


def main() -> None:
    """Write the boards, or with `--check` compare them."""
    wanted = {FOLDER / f"{board.name}.json": board.render() for board in boards()}
    if sys.argv[1:] == ["--check"]:
        there = {path: path.read_text() for path in FOLDER.glob("*.json")}
        if stale := sorted(
            path.name for path in wanted.keys() | there if wanted.get(path) != there.get(path)
        ):
            sys.exit(f"deploy/grafana: {', '.join(stale)} out of date: run `python -m tools.boards`")
        return
    if sys.argv[1:]:
        sys.exit("usage: python -m tools.boards [--check]")
    FOLDER.mkdir(exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text)
