"""Servers of guests are killed, stopped and cut off in mid-stream: no character is lost, repeated or garbled.

A run disturbs one server of a pair of groups again and again. Answers that it had begun go on at the other
group, which is of the same kind or of another one. `tests/kits/guests/seams.py` says how they are checked.
"""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli.stack.model_dir import demo_model
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import full, scaled
from tests.kits.e2e.stack import Stack
from tests.kits.guests.false_server.scripts import DEFAULT_TEXT
from tests.kits.guests.guest_fleet import Fault, own_stack, pair
from tests.kits.guests.servers import false_command, llama_command, served

pytestmark = pytest.mark.timeout(scaled(600, 5400))
FAULTS: tuple[Fault, ...] = ("kill", "cut", "stop", "cut")  # in turns; a kill costs a start and a probe


class Kinds:
    """A stack, and the servers that its guests may be in front of, by kind.

    Args:
        model: What the stack's group and the scripted servers have the tokenizer of.
    """

    def __init__(self, stack: Stack, model: Path, tokenizer: Path) -> None:
        self.stack = stack
        self.model = model
        self._tokenizer = tokenizer

    def command(self, kind: str) -> list[str]:
        """The command of a server."""
        if kind == "llama":
            return llama_command(threads=1)[0]
        return false_command(kind, self._tokenizer, 0, DEFAULT_TEXT)


def run_faults(kinds: Kinds, first: str, second: str, count: int, seed: int) -> None:
    """Makes faults at a server of one kind until `count` have cut answers; `own`: the stack's own group."""
    chance = random.Random(seed)
    folder = kinds.stack.folder
    hits, cut = Counter[str](), 0
    with ExitStack() as servers:
        begins = servers.enter_context(served(f"{first}-1", kinds.command(first), folder))
        goes_on = None
        if second != "own":
            goes_on = servers.enter_context(served(f"{second}-2", kinds.command(second), folder))
        both = servers.enter_context(pair(kinds.stack, kinds.model, begins, goes_on))
        while hits.total() < count:
            fault = FAULTS[hits.total() % len(FAULTS)]
            found = both.disturb(fault, after=chance.randint(1, 20), more=chance.randint(0, 40))
            hits[fault] += found > 0
            cut += found
            print(f"{fault} of {begins.name}: {found} answers were cut, {hits.total()} faults", flush=True)
    record(
        f"guests killed: {first} to {second}",
        faults=dict(hits),
        answers_cut=cut,
        asked=both.asked,
    )


@pytest.fixture(scope="module")
def smol(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    """Groups of the model that llama.cpp's server computes."""
    model = llama_command()[1]
    with own_stack(tmp_path_factory.mktemp("llama-killed"), model) as stack:
        yield Kinds(stack, model, model)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    """Groups of the demo model, which scripted servers need no program for."""
    with own_stack(tmp_path_factory.mktemp("guests-killed"), demo_model()) as stack:
        yield Kinds(stack, demo_model(), demo_model() / "tokenizer.json")


@pytest.mark.guests
@pytest.mark.parametrize(("second", "count"), [("own", (4, 20)), ("text", (4, 20)), ("llama", (4, 40))])
def test_answers_of_llama_cpp_go_on_elsewhere(smol: Kinds, second: str, count: tuple[int, int]) -> None:
    run_faults(smol, "llama", second, scaled(*count), seed=39)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("vllm", "own"),
        pytest.param(
            "text", "vllm", marks=pytest.mark.skipif(not full, reason="one pair is enough: RYZ_CHAOS=full")
        ),
    ],
)
def test_answers_of_scripted_servers_go_on_elsewhere(demo: Kinds, first: str, second: str) -> None:
    run_faults(demo, first, second, scaled(4, 50), seed=40)
