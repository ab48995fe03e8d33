"""Claude Code and Codex, set up as their recipes say, against a stack whose answers a script writes.

Each runs in a home directory of its own with no variable of this process but `PATH`: no key or setting of the
person who runs the tests is used or changed.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients.environments import OutsideProgram
from tests.clients.outside_clients import CLAUDE_CODE, CODEX
from tests.clients.scripted_stack import CONTEXTS, HELLO, KEY, WRITTEN, ScriptedStack, scripted_stack
from tests.kits.docs.pages import blocks_with
from tools.docs.manual.command_blocks import ROOT, blocks, commands

pytestmark = [pytest.mark.clients, pytest.mark.timeout(2400)]
RUN_S = 300.0
AT_ONCE_S = 90.0  # repeating a request ten times takes it three minutes
ANY_CODEX = ("--dangerously-bypass-approvals-and-sandbox",)  # a sandbox in a container may not start


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedStack]:
    with scripted_stack(tmp_path_factory.mktemp("agents")) as running:
        yield running


class Ran(NamedTuple):
    """How a program ended.

    Attributes:
        prompts: How many prompts models answered meanwhile.
    """

    code: int
    prompts: int
    answer: str
    errors: str


class Agent:
    """A program with a home and a folder to work in."""

    def __init__(self, program: OutsideProgram, stack: ScriptedStack, folder: Path) -> None:
        self.program = program
        self.stack = stack
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        self._path = os.pathsep.join((str(program.install()), os.environ["PATH"]))

    def run(self, asked: str, *options: str, model: str = "long", window: int = 0, key: str = KEY) -> Ran:
        """Runs the recipe's commands with another question.

        Args:
            options: More of the program.
            model: In place of the recipe's.
            window: The context that the program assumes; 0: the model's.
            key: In place of the recipe's; empty: none is set.
        """
        known = len(self.stack.prompts)
        words = {
            "127.0.0.1:8000": self.stack.url.removeprefix("http://"),
            "qwen3-8b": model,
            "40960": str(window or CONTEXTS.get(model, CONTEXTS["long"])),
            "=none": f"={key}",
            '"Say hello."': " ".join(f"'{word}'" for word in (asked, *options)),
        }
        lines = [
            _with(words, command.text)
            for block in blocks_with(self.program.recipe, "runs with its client")
            for command in commands(block)
            if key or "_KEY=" not in command.text
        ]
        self._configure(words)
        ended = subprocess.run(
            ["bash", "-ec", "\n".join(lines)],
            cwd=self.work,
            env={"HOME": str(self.home), "PATH": self._path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        print(*lines, ended.stdout, ended.stderr, sep="\n")
        prompts = len(self.stack.prompts) - known
        return Ran(ended.returncode, prompts, ended.stdout.strip(), ended.stderr)

    def _configure(self, words: dict[str, str]) -> None:
        page = self.program.recipe
        for block in blocks(page, (ROOT / page).read_text()):
            if block.language == "toml":
                file = self.home / ".codex" / "config.toml"
                file.parent.mkdir(exist_ok=True)
                file.write_text(_with(words, block.text))


def _with(words: dict[str, str], text: str) -> str:
    for shown, real in words.items():
        text = text.replace(shown, real)
    return text


@pytest.fixture
def claude(stack: ScriptedStack, tmp_path: Path) -> Agent:
    return Agent(CLAUDE_CODE, stack, tmp_path)


@pytest.fixture
def codex(stack: ScriptedStack, tmp_path: Path) -> Agent:
    return Agent(CODEX, stack, tmp_path)


def test_claude_code_answers_as_its_recipe_says(claude: Agent) -> None:
    ran = claude.run("Say hello to me.")
    assert ran[:3] == (0, 1, HELLO)
    assert "Say hello to me." in claude.stack.prompts[-1]
    assert "x-anthropic-billing-header" not in claude.stack.prompts[-1]
    assert "assumes a context window" not in ran.errors


def test_claude_code_writes_a_file(claude: Agent) -> None:
    file = claude.work / "note.txt"
    ran = claude.run(f"Write Quokka into {file} now.", "--allowedTools", "Write")
    assert ran[:3] == (0, 2, WRITTEN)
    assert file.read_text() == "Quokka\n"


def test_claude_code_finds_a_tool_that_it_searches_for(claude: Agent) -> None:
    assert claude.run("Search for WebFetch.")[:3] == (0, 2, "Found WebFetch.")


def test_claude_code_asks_for_fewer_tokens_where_the_context_is_short(claude: Agent) -> None:
    assert claude.run("Say hello to me.", model="short")[:3] == (0, 1, HELLO)


@pytest.mark.parametrize("known", [True, False])
def test_claude_code_says_that_a_context_is_too_short(claude: Agent, known: bool) -> None:
    ran = claude.run("Say hello to me.", model="tiny", window=0 if known else CONTEXTS["long"])
    assert ran[:2] == (1, 0)
    assert "Prompt is too long" in ran.answer
    assert known or f"limit {CONTEXTS['tiny']}" in ran.answer


def test_claude_code_names_a_model_that_is_not_served(claude: Agent) -> None:
    ran = claude.run("Say hello to me.", model="nope")
    assert ran[:2] == (1, 0)
    assert "selected model (nope)" in ran.answer


def test_claude_code_says_at_once_that_a_key_is_wrong(claude: Agent) -> None:
    began = time.monotonic()
    ran = claude.run("Say hello to me.", key="sk-wrong-key")
    assert ran[:2] == (1, 0)
    assert "401 the API key is not known here" in ran.answer
    assert time.monotonic() - began < AT_ONCE_S


def test_codex_answers_as_its_recipe_says(codex: Agent) -> None:
    assert codex.run("Say hello to me.")[:3] == (0, 1, HELLO)
    assert "Say hello to me." in codex.stack.prompts[-1]


def test_codex_writes_a_file_by_a_command(codex: Agent) -> None:
    file = codex.work / "note.txt"
    assert codex.run(f"Write Quokka into {file} now.", *ANY_CODEX)[:3] == (0, 2, WRITTEN)
    assert file.read_text() == "Quokka\n"


def test_codex_says_that_a_context_is_too_short(codex: Agent) -> None:
    ran = codex.run("Say hello to me.", model="tiny")
    assert ran[:2] == (1, 0)
    assert "ran out of room in the model's context window" in ran.errors


@pytest.mark.parametrize(
    ("key", "said"), [("sk-wrong-key", "the API key is not known here"), ("", "RYZ_API_KEY")]
)
def test_codex_says_what_is_wrong_with_a_key(codex: Agent, key: str, said: str) -> None:
    ran = codex.run("Say hello to me.", key=key)
    assert ran[:2] == (1, 0)
    assert said in ran.errors
