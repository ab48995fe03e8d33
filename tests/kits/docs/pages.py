"""Runs the blocks of a page, in order, against a stack."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent

from tests.kits.docs.shell import Shell
from tests.kits.docs.shown import Page
from tests.kits.waiting import PATIENCE_S
from tools.docs.manual.command_blocks import ROOT, Command, CommandBlock, blocks, commands

RUN = {
    page: run
    for page, text in (
        (path.relative_to(ROOT).as_posix(), path.read_text())
        for path in (
            ROOT / "README.md",
            *sorted((ROOT / "docs").glob("*.md")),
            *sorted((ROOT / "docs/recipes").glob("*.md")),
        )
    )
    if (
        run := [one for one in blocks(page, text) if one.language in {"console", "python"} and not one.reason]
    )
}


def scratch(folder: Path) -> None:
    """Makes a folder look like a checkout to the commands of pages."""
    for name, target in ((".venv", Path(sys.prefix)), ("examples", ROOT / "examples")):
        (folder / name).symlink_to(target)


def blocks_with(page: str, reason: str) -> list[CommandBlock]:
    """The blocks of a page that are not run with the others, for that reason."""
    return [one for one in blocks(page, (ROOT / page).read_text()) if one.reason == reason]


def run_blocks(
    found: Sequence[CommandBlock],
    folder: Path,
    env: dict[str, str],
    words: dict[str, str],
    programs: Path = Path(sys.prefix) / "bin",
) -> None:
    """Runs blocks of a page, in order.

    Args:
        found: The blocks.
        folder: Where its commands run.
        env: Variables beside those of this process.
        words: Addresses of the page, and those of this run.
        programs: Where `python` and others are looked for first.

    Raises:
        AssertionError: A command failed, or did not print what the page shows.
    """
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    known = Page(words)
    # how tests start programs is nothing that a reader has
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RYZ_TEST_")}
    with Shell(folder, {**inherited, "COLUMNS": "200", **env, "PATH": path}) as shell:
        program = ""
        for block in found:
            if block.language == "python":
                program = f"{program}\n{block.text}" if block.goes_on else block.text
                (folder / "block.py").write_text(known.real(program))
                _run(block, Command(block.line, "python block.py", ""), shell, known)
                continue
            for command in commands(block):
                _run(block, command, shell, known)


_STATUS = "%{http_code}"
_HEARD_S = 10.0  # within which a gateway has heard of a key that was made, by docs/tenants.md


def _run(block: CommandBlock, command: Command, shell: Shell, known: Page) -> None:
    ended = shell.run(known.real(command.text), PATIENCE_S)
    where = f"{block.page}:{command.line}: {command.text}"
    printed = indent(ended.printed, "  | ")
    assert ended.status == 0, f"{where}\nended with {ended.status}:\n{printed}"
    if command.shown:
        ends = time.monotonic() + _HEARD_S
        while _STATUS in command.text and not known.compare(command.shown, ended.printed):
            if time.monotonic() > ends:
                break
            ended = shell.run(known.real(command.text), PATIENCE_S)
        printed = indent(ended.printed, "  | ")
        same = known.compare(command.shown, ended.printed)
        assert same, f"{where}\nprinted:\n{printed}\nbut the page shows:\n{indent(command.shown, '  | ')}"
