"""Blocks of commands in pages: how they are read, what is refused, and how output is compared."""

import os
from pathlib import Path

import pytest

from tests.kits.docs.shell import Shell
from tests.kits.docs.shown import Page
from tests.kits.waiting import PATIENCE_S
from tools.docs.manual.command_blocks import CommandBlock, blocks, commands, pages, problems

PAGE = """# A page

```console
$ echo one \\
    two
one two
$ python3 -c 'print(1)
print(2)'
1
2
$ cat <<'EOF'
$ no command
EOF
```

<!-- not run: needs a GPU -->
```console
$ nvidia-smi
```

1. In a list:

   <!-- goes on -->
   ```python
   print(1)
   ```
"""


def console(text: str, reason: str = "") -> CommandBlock:
    return CommandBlock("page.md", 1, "console", text, reason)


def test_blocks_of_a_page() -> None:
    found = list(blocks("page.md", PAGE))
    assert [(one.line, one.language, one.reason, one.goes_on) for one in found] == [
        (3, "console", "", False),
        (17, "console", "needs a GPU", False),
        (24, "python", "", True),
    ]
    assert [(one.line, one.text, one.shown) for one in commands(found[0])] == [
        (4, "echo one \\\n    two", "one two\n"),
        (7, "python3 -c 'print(1)\nprint(2)'", "1\n2\n"),
        (11, "cat <<'EOF'\n$ no command\nEOF", ""),
    ]
    assert not [line for one in found for line in problems(one)]


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (console("ls\n"), "no command before this line"),
        (console("$ echo 'a\n"), "cannot parse"),
        (console("$ cat <<EOF\nopen\n"), "cannot parse"),
        (console("$ ls\n", "for no reason"), "none of the reasons"),
        (CommandBlock("page.md", 1, "sh", "ls\n"), "language `console`"),
        (CommandBlock("page.md", 1, "", "$ ls\n"), "language `console`"),
        (CommandBlock("page.md", 1, "json", "{}", "needs a GPU"), "leave the comment out"),
    ],
)
def test_what_is_refused(block: CommandBlock, why: str) -> None:
    assert why in "".join(problems(block))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("Ready at …, 1.5 s.", "Ready at 10:31:07.12, 22 s.", True),
        ("a  b\n", "a b", True),
        ("Miso", "Misu", False),
        ("one", "one two", False),
        ("3 sessions", "4 sessions", False),
        ("2026-11-01 12:00", "2027-01-02 03:04", True),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:43210/v1", True),
        ("a.c", "abc", False),
    ],
)
def test_output(shown: str, printed: str, same: bool) -> None:
    assert Page({"127.0.0.1:8000": "127.0.0.1:43210"}).compare(shown, printed) is same


def test_ids_are_learned() -> None:
    page = Page({})
    shown, real = "sk-ryz-4f7a0m2k9d1c", "sk-ryz-zzzzzzzzzzzz"
    assert page.compare(f"{shown}-… of {shown}", f"{real}-secret of {real}")
    assert page.real(f"ryz keys revoke {shown}") == f"ryz keys revoke {real}"
    assert not page.compare(f"{shown} {shown}", "sk-ryz-aaaaaaaaaaaa sk-ryz-bbbbbbbbbbbb")


def test_shell(tmp_path: Path) -> None:
    with Shell(tmp_path, dict(os.environ)) as shell:
        assert shell.run("name=Ada; cd /", PATIENCE_S) == (0, "\n")
        assert shell.run("echo $name; pwd; cat", PATIENCE_S) == (0, "Ada\n/\n\n")
        assert shell.run("no-such-command-here", PATIENCE_S).status == 127
        with pytest.raises(TimeoutError, match="ended the shell"):
            shell.run("exit 3", PATIENCE_S)


def test_every_page_is_read() -> None:
    read = {page for page, text in pages() if any(one.language == "console" for one in blocks(page, text))}
    assert {"README.md", "docs/tenants.md", "docs/debugging/a-request-hangs.md"} <= read
