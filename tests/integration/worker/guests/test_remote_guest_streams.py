"""Whatever a server does with a stream, the answer is whole, or has one error and no wrong character."""

import pytest

from services.worker.null.model import END
from tests.integration.worker.guests.conftest import StartGuest, StartServer
from tests.kits.guests.false_server.behaviours import BEHAVIOURS
from tests.kits.guests.false_server.scripts import Style
from tests.kits.guests.guest_runs import guest_sequence

PROMPT = list(b"Once upon a time")
CASES = [
    pytest.param(name, style, id=f"{name}-{style}")
    for name, behaviour in BEHAVIOURS.items()
    for style in sorted(behaviour.styles)
]


def test_there_are_many_bad_behaviours() -> None:
    assert sum(not behaviour.whole for behaviour in BEHAVIOURS.values()) >= 30


@pytest.mark.parametrize(("name", "style"), CASES)
async def test_an_answer_is_whole_or_has_one_error(
    name: str, style: Style, start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server(style)
    run = await start_guest(server)
    server.behave(name)
    # the answer ends between two characters, so that a server of texts has shown all of it
    brought = await run.run(guest_sequence(PROMPT, max_tokens=88, eos_ids=[END]))
    expected = server.voice.next_tokens(len(PROMPT), 88)
    assert bytes(expected).decode()
    assert brought.num_ends == 1
    if BEHAVIOURS[name].whole:
        assert (brought.error, brought.finished) == ("", "length")
        assert brought.token_ids == expected
    else:
        assert brought.error.startswith(f"the server at 127.0.0.1:{server.port} ")
        assert "\n" not in brought.error
        assert brought.token_ids == expected[: len(brought.token_ids)]
    server.behave("plain")
    after = await run.run(guest_sequence(PROMPT, max_tokens=10))
    assert after.token_ids == server.voice.next_tokens(len(PROMPT), 10)
    assert run.failures == []


@pytest.mark.parametrize("style", ["vllm", "llama.cpp", "text"])
async def test_an_answer_goes_on_elsewhere_without_a_seam(
    style: Style, start_server: StartServer, start_guest: StartGuest
) -> None:
    server, other = await start_server(style), await start_server(style)
    run, second = await start_guest(server), await start_guest(other)
    whole = server.voice.next_tokens(len(PROMPT), 88)
    for after in range(0, 60, 7):
        server.behave("cut", after=after)
        first = await run.run(guest_sequence(PROMPT, max_tokens=88))
        rest = await second.run(
            guest_sequence(PROMPT, generated=first.token_ids, max_tokens=88 - len(first.token_ids))
        )
        assert first.error
        assert first.token_ids + rest.token_ids == whole


@pytest.mark.parametrize("style", ["vllm", "llama.cpp", "text"])
async def test_an_end_of_the_model_is_its_end_token(
    style: Style, start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server(style)
    run = await start_guest(server)
    server.voice.num_tokens = 30
    brought = await run.run(guest_sequence(PROMPT, max_tokens=88, eos_ids=[END, 7]))
    assert brought.token_ids == [*server.voice.next_tokens(len(PROMPT), 30), END]
    assert brought.finished == "stop"


@pytest.mark.parametrize("style", ["vllm", "llama.cpp", "text"])
async def test_many_streams_do_not_mix(
    style: Style, start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server(style)
    run = await start_guest(server)
    server.behave("slow")
    prompts = [PROMPT[:size] * 3 for size in range(1, 17)]
    numbers = [run.open(guest_sequence(prompt, max_tokens=88)) for prompt in prompts]
    for number, prompt in zip(numbers, prompts, strict=True):
        brought = await run.end_of(number)
        expected = server.voice.next_tokens(len(prompt), 88)
        assert brought.token_ids == expected[: len(brought.token_ids)]
        assert len(brought.token_ids) >= 85  # a text server does not show the first bytes of a character
