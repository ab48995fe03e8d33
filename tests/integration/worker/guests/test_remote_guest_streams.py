"""Whatever a server does with a stream, the answer is whole, or has one error and no wrong character."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import get_args

import pytest
import pytest_asyncio

from services.worker.null.model import END
from tests.integration.worker.guests.conftest import make_guest, make_voice
from tests.kits.guests.false_server.behaviours import BEHAVIOURS
from tests.kits.guests.false_server.scripts import Style
from tests.kits.guests.false_server.server import FalseServer
from tests.kits.guests.guest_runs import GuestRun, guest_sequence

in_one_loop = pytest.mark.asyncio(loop_scope="module")
PROMPT = list(b"Once upon a time")
CASES = [
    pytest.param(name, style, id=f"{name}-{style}")
    for name, behaviour in BEHAVIOURS.items()
    for style in sorted(behaviour.styles)
]


@dataclass(frozen=True, slots=True)
class Pair:
    """A server, and guests that were started in front of it.

    Attributes:
        hasty: One that does not wait long for a token.
    """

    server: FalseServer
    run: GuestRun
    hasty: GuestRun


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pairs() -> AsyncIterator[dict[Style, Pair]]:
    """A pair of each style, for all behaviours one after another: none may leave anything behind."""
    made = dict[Style, Pair]()
    for style in get_args(Style):
        server = FalseServer(make_voice(style))
        await server.start()
        run = GuestRun(make_guest(server))
        hasty = GuestRun(make_guest(server, first_token_timeout_s=0.3, stall_timeout_s=0.3))
        for one in (run, hasty):
            await one.guest.start()
        made[style] = Pair(server, run, hasty)
    yield made
    for pair in made.values():
        for one in (pair.run, pair.hasty):
            await one.guest.stop()
        await pair.server.stop()


def ready(pairs: dict[Style, Pair], style: Style) -> tuple[FalseServer, GuestRun]:
    """The pair of a style, as it was at the beginning."""
    server = pairs[style].server
    server.behave("plain")
    server.voice.num_tokens = 0
    return server, pairs[style].run


def test_there_are_many_bad_behaviours() -> None:
    assert sum(behaviour.outcome != "whole" for behaviour in BEHAVIOURS.values()) >= 30


@in_one_loop
@pytest.mark.parametrize(("name", "style"), CASES)
async def test_an_answer_is_whole_or_has_one_error(name: str, style: Style, pairs: dict[Style, Pair]) -> None:
    server, run = ready(pairs, style)
    server.behave(name)
    outcome = BEHAVIOURS[name].outcome
    watched = pairs[style].hasty if outcome == "stall" else run
    # the answer ends between two characters, so that a server of texts has shown all of it
    brought = await watched.run(guest_sequence(PROMPT, max_tokens=88, eos_ids=[END]))
    expected = server.voice.next_tokens(len(PROMPT), 88)
    assert bytes(expected).decode()
    assert brought.num_ends == 1
    if outcome == "whole":
        assert (brought.error, brought.finished) == ("", "length")
        assert brought.token_ids == expected
    else:
        assert brought.error.startswith(f"the server at 127.0.0.1:{server.port} ")
        assert "\n" not in brought.error
        assert brought.token_ids == expected[: len(brought.token_ids)]
    server.behave("plain")
    after = await run.run(guest_sequence(PROMPT, max_tokens=10))
    assert after.token_ids == server.voice.next_tokens(len(PROMPT), 10)
    assert run.failures == watched.failures == []


@in_one_loop
@pytest.mark.parametrize("style", ["vllm", "llama.cpp", "text"])
async def test_an_answer_goes_on_elsewhere_without_a_seam(style: Style, pairs: dict[Style, Pair]) -> None:
    server, run = ready(pairs, style)
    # a server of texts cannot go on within a character, which can be where one of token ids was cut
    _, second = ready(pairs, "vllm" if style == "llama.cpp" else "llama.cpp")
    whole = server.voice.next_tokens(len(PROMPT), 88)
    for after in range(0, 60, 7):
        server.behave("cut", after=after)
        first = await run.run(guest_sequence(PROMPT, max_tokens=88))
        rest = await second.run(
            guest_sequence(PROMPT, generated=first.token_ids, max_tokens=88 - len(first.token_ids))
        )
        assert first.error
        assert not rest.error
        assert first.token_ids + rest.token_ids == whole


@in_one_loop
@pytest.mark.parametrize("style", ["vllm", "llama.cpp", "text"])
async def test_a_length_within_a_character_is_reached(style: Style, pairs: dict[Style, Pair]) -> None:
    server, run = ready(pairs, style)
    whole = server.voice.next_tokens(len(PROMPT), 88)
    within = [
        size
        for size in range(1, 88)
        if bytes(whole[:size]).decode(errors="ignore").encode() != bytes(whole[:size])
    ]
    assert within
    for size in within:
        brought = await run.run(guest_sequence(PROMPT, max_tokens=size, eos_ids=[END]))
        assert (brought.token_ids, brought.error, brought.finished) == (whole[:size], "", "length")


@in_one_loop
@pytest.mark.parametrize("style", ["vllm", "llama.cpp", "text"])
async def test_an_end_of_the_model_is_its_end_token(style: Style, pairs: dict[Style, Pair]) -> None:
    server, run = ready(pairs, style)
    server.voice.num_tokens = 30
    brought = await run.run(guest_sequence(PROMPT, max_tokens=88, eos_ids=[END, 7]))
    assert brought.token_ids == [*server.voice.next_tokens(len(PROMPT), 30), END]
    assert brought.finished == "stop"


@in_one_loop
@pytest.mark.parametrize("style", ["vllm", "llama.cpp", "text"])
async def test_many_streams_do_not_mix(style: Style, pairs: dict[Style, Pair]) -> None:
    server, run = ready(pairs, style)
    server.behave("slow")
    prompts = [PROMPT[:size] * 3 for size in range(1, 17)]
    numbers = [run.open(guest_sequence(prompt, max_tokens=88)) for prompt in prompts]
    for number, prompt in zip(numbers, prompts, strict=True):
        brought = await run.end_of(number)
        expected = server.voice.next_tokens(len(prompt), 88)
        assert brought.token_ids == expected[: len(brought.token_ids)]
        assert len(brought.token_ids) >= 85  # a text server does not show the first bytes of a character


@in_one_loop
async def test_a_server_of_texts_does_not_go_on_within_a_character(pairs: dict[Style, Pair]) -> None:
    _, run = ready(pairs, "text")
    brought = await run.run(guest_sequence(PROMPT, generated=list("é".encode())[:1]))
    assert "ends within a character" in brought.error
