"""Finds the blocks of commands in pages, and checks that each is run by the tests or says why not.

A block of the language `console` (commands behind `$`, each perhaps with what it shows) or `python` is run as
it stands, unless a comment before it, which readers do not see, gives one of `REASONS`:
`<!-- not run: needs a GPU -->`. `<!-- goes on -->` before a block in Python runs the one before it first.
Pages are parsed by markdown-it-py.
Run as `python -m tools.docs.manual.command_blocks`.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from tools.docs.named_files import NamedFiles

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = frozenset({"console", "python"})
OTHER_SHELLS = frozenset({"bash", "sh", "shell"})
REASONS = {
    "needs a GPU": "a device that tests do not have",
    "needs a second host": "a fleet over two machines",
    "needs a server of others": "vLLM, llama-server and the like",
    "needs a program of others": "tried by hand with the version that its page names",
    "runs with its client": "`make test-clients` runs it in an environment that has the client",
    "needs Docker": "a Docker engine; `make test-compose` has the tests of containers",
    "needs files of yours": "a model, an adapter or data that only the reader has",
    "needs the client's wheel": "tests of the client build it and run the same calls",
    "installs software": "changes the machine or downloads",
    "starts a stack": "tests of `ryz up` start stacks of their own",
    "takes minutes": "training, long tests",
    "takes your keys": "a program that waits for what is typed",
    "runs in the tests of restarts": "tests/e2e/starts/test_what_lasts.py",
    "shows an incident": "what was printed while something was broken on purpose",
    "excerpt": "a part of a program",
}
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
GOES_ON = "<!-- goes on -->"
PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class CommandBlock:
    """A fenced block of a page.

    Attributes:
        page: The page's path in the tree.
        line: The line of its first fence, from 1.
        language: The first word behind that fence.
        reason: Why it is not run; empty if it is.
        goes_on: Whether it needs what the block in Python before it has made.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str = ""
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a `console` block, and what it shows; empty: anything."""

    line: int
    text: str
    shown: str


def blocks(page: str, text: str) -> Iterator[CommandBlock]:
    """Yields the fenced blocks of a page, also those in lists.

    Args:
        page: The page's path in the tree.
        text: Its Markdown.
    """
    comment = ""
    for token in MarkdownIt().parse(text):
        if token.type == "html_block":
            comment = token.content.strip()
        elif token.type == "fence":
            language = (token.info.split() or [""])[0]
            reason = NOT_RUN.fullmatch(comment)
            first, _ = token.map or (0, 0)
            yield CommandBlock(
                page, first + 1, language, token.content, reason[1] if reason else "", comment == GOES_ON
            )
            comment = ""
        elif token.type not in {"list_item_open", "bullet_list_open", "ordered_list_open"}:
            comment = ""


def commands(block: CommandBlock) -> list[Command]:
    """Splits a `console` block; a command goes on over further lines until bash can parse it.

    Raises:
        ValueError: There is output before the first command, or the last one does not end.
    """
    found: list[Command] = []
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        line = block.line + 1 + at
        if not lines[at].startswith(PROMPT):
            if not found:
                raise ValueError(f"{block.page}:{line}: no command before this line: {lines[at]}")
            last = found[-1]
            found[-1] = Command(last.line, last.text, f"{last.shown}{lines[at]}\n")
            at += 1
            continue
        end = next((end for end in range(at + 1, len(lines) + 1) if _is_whole(lines[at:end])), 0)
        if not end:
            raise ValueError(f"{block.page}:{line}: bash cannot parse this command: {lines[at]}")
        found.append(Command(line, "\n".join(lines[at:end]).removeprefix(PROMPT), ""))
        at = end
    return found


def _is_whole(lines: list[str]) -> bool:
    text = "\n".join(lines).removeprefix(PROMPT)
    if text.endswith("\\"):
        return False
    parsed = subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False)
    return not parsed.returncode and not parsed.stderr  # a here-document without an end is a warning


def problems(block: CommandBlock) -> Iterator[str]:
    """Yields what keeps a block of commands from being run or left out."""
    where = f"{block.page}:{block.line}"
    has_prompt = any(line.startswith(PROMPT) for line in block.text.splitlines())
    if block.language in OTHER_SHELLS or (has_prompt and block.language != "console"):
        yield f"{where}: commands stand in blocks of the language `console`, behind `$`"
    elif block.language not in COMMANDS:
        if block.reason:
            yield f"{where}: this block has no commands; leave the comment out"
    elif block.reason:
        if block.reason not in REASONS:
            yield f"{where}: {block.reason!r} is none of the reasons for not running a block: {[*REASONS]}"
    elif block.language == "console":
        try:
            commands(block)
        except ValueError as error:
            yield str(error)


def pages() -> Iterator[tuple[str, str]]:
    """Yields the path and the text of every page."""
    for path in sorted(NamedFiles(ROOT).files):
        if path.endswith(".md"):
            yield path, (ROOT / path).read_text()


def main() -> None:
    """Check all pages.

    Raises:
        SystemExit: A block of commands cannot be run and has no reason; the message has a line for each.
    """
    found = [
        line
        for page, text in pages()
        if page != "CHANGELOG.md" and not page.startswith("docs/decisions/")
        for block in blocks(page, text)
        for line in problems(block)
    ]
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
