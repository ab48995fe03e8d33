"""Answers to one question: a service that is known to be there is waited for longer than for silence."""

import asyncio

import pytest

from cli.status import gathering
from cli.status.gathering import Gathering
from tests.kits.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "QUIET_S", 0.05)
    monkeypatch.setattr(gathering, "FIRST_S", 0.05)
    monkeypatch.setattr(gathering, "LATE_S", PATIENCE_S)


async def test_a_known_service_whose_answer_is_late_is_waited_for() -> None:
    answered: list[str] = []
    answers = Gathering(incomplete=lambda: len(answered) < 2)

    async def answer() -> None:
        for name, after_s in (("router", 0.0), ("leader", 0.5)):
            await asyncio.sleep(after_s)
            answered.append(name)
            answers.note_answer()

    answering = asyncio.create_task(answer())
    await answers.wait_for_answers()
    assert answered == ["router", "leader"]
    await answering


async def test_a_known_service_that_never_answers_is_waited_for_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering, "LATE_S", 0.3)
    began = asyncio.get_running_loop().time()
    answers = Gathering(incomplete=lambda: True)
    answers.note_answer()
    async with asyncio.timeout(PATIENCE_S):
        await answers.wait_for_answers()
    assert asyncio.get_running_loop().time() - began >= 0.29


async def test_without_a_known_service_silence_ends_the_wait() -> None:
    answers = Gathering()
    answers.note_answer()
    async with asyncio.timeout(PATIENCE_S / 2):  # less than the wait for a known service
        await answers.wait_for_answers()
