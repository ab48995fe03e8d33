"""What goes wrong with one request's content ends that request, and neither the engine nor the breaker."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from services.worker.domain.answers.choice_state import ChoiceState
from services.worker.leader.control_runs import TENANT
from services.worker.leader.sessions import turn_end
from services.worker.text.grammars import answer_grammar
from services.worker.text.grammars.compiled_grammar import MatcherConstraint
from services.worker.text.grammars.structured_grammar import compile_structured
from services.worker.text.library_panics import LibraryPanicked, guarded
from shared.messages import Done
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, null_engine

STRUCTURED = {"kind": "regex", "definition": "[a-c]{40}"}


class PanicException(BaseException):
    """As pyo3's, which cannot be imported."""


def panics(*_: Any) -> Any:
    raise PanicException("index out of bounds")


def raises(*_: Any) -> Any:
    raise RuntimeError("a bug")


@pytest.fixture
async def kit(memory_bus: MemoryBus) -> AsyncIterator[Kit]:
    async with Kit(memory_bus, null_engine()) as kit:
        yield kit


async def check_confined(kit: Kit, number: int) -> None:
    """Waits until the group has served its own request, and checks that nothing else happened."""
    counts = kit.leader.parts.table.counts
    await kit.until(lambda: counts.confined == number)
    assert counts.broken == 0
    assert kit.metric("engine_failures_total") == 0
    assert kit.metric("control_runs_total", outcome="passed") >= 1
    assert kit.metric("request_faults_total", owner="unclear") == number
    assert isinstance((await kit.run(chat("after")))[-1], Done)
    await kit.all_free()


def of_callers(harmful: Callable[..., Any], sound: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that does harm to the choices of callers, not to those of the leader itself."""

    def method(self: Any, *args: Any) -> Any:
        sequence = getattr(self, "sequence", None)
        return (sound if sequence is None or sequence.tenant == TENANT else harmful)(self, *args)

    return method


@pytest.mark.parametrize("harm", [raises, panics])
@pytest.mark.parametrize("method", ["mask", "accept"])
async def test_a_bug_in_following_a_grammar(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, harm: Callable[..., Any], method: str
) -> None:
    kit.expected_errors = {"the model gave no token"}
    sound = getattr(MatcherConstraint, method)

    def spoiled(self: MatcherConstraint, *args: Any) -> Any:
        if len(self._tokens) >= 4:
            guarded(harm)
        return sound(self, *args)

    monkeypatch.setattr(MatcherConstraint, method, spoiled)
    for number in range(4):
        failed = await kit.failure(chat(f"bad{number}", structured=STRUCTURED, sampling={"max_tokens": 50}))
        assert (failed.code, failed.data["reason"]) == ("internal", "grammar")
        assert "a bug" not in failed.message
    await check_confined(kit, 4)


@pytest.mark.parametrize("harm", [raises, panics])
async def test_a_bug_in_compiling_a_grammar(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, harm: Callable[..., Any]
) -> None:
    kit.expected_errors = {"request failed"}

    def spoiled(structured: Any, *args: Any, **options: Any) -> Any:
        return harm() if structured.kind == "regex" else compile_structured(structured, *args, **options)

    monkeypatch.setattr(answer_grammar, "compile_structured", spoiled)
    failed = await kit.failure(chat("bad", structured=STRUCTURED))
    assert (failed.code, failed.data["reason"]) == ("internal", "prompt")
    await check_confined(kit, 1)


@pytest.mark.sources  # compiled callers do not see what a test puts in place of a method
async def test_a_bug_in_the_text_or_the_frames_of_an_answer(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.expected_errors = {"no text from tokens", "no frame from tokens"}
    for number, method in enumerate(("advance", "take_delta"), 1):
        with monkeypatch.context() as patch:
            patch.setattr(ChoiceState, method, of_callers(raises, getattr(ChoiceState, method)))
            failed = await kit.failure(chat(f"bad{number}"))
            assert (failed.code, failed.data["reason"]) == ("internal", "answer")
            await kit.until(lambda number=number: kit.leader.parts.table.counts.confined == number)  # type: ignore[misc]
    await check_confined(kit, 2)


@pytest.mark.sources  # as above, of a function
async def test_a_bug_in_the_record_of_a_turn_leaves_the_answer(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.expected_errors = {"the turn was not finished"}
    monkeypatch.setattr(turn_end, "next_record", raises)
    request = chat("r", session={"session_id": "s", "given": True})
    assert isinstance((await kit.run(request))[-1], Done)
    assert "the turn was not finished" in {entry["event"] for entry in kit.logs}
    await kit.all_free()


async def test_a_dead_end_of_a_grammar_is_the_requests(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = MatcherConstraint.mask
    monkeypatch.setattr(
        MatcherConstraint,
        "mask",
        lambda self: sound(self) if len(self._tokens) < 5 else bytes(len(sound(self))),
    )
    for number in range(4):
        failed = await kit.failure(chat(f"bad{number}", structured=STRUCTURED, sampling={"max_tokens": 50}))
        assert (failed.code, failed.data["param"]) == ("invalid_request", "structured")
    counts = kit.leader.parts.table.counts
    assert (counts.broken, counts.ended, counts.wants_control) == (0, 0, False)
    assert kit.metric("request_faults_total", owner="content") == 4


@pytest.mark.sources  # compiled callers do not see what a test puts in place of a method
async def test_a_group_that_fails_everything_counts_against_itself_and_recovers(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.expected_errors = {"no text from tokens", "the group fails its own request"}
    counts = kit.leader.parts.table.counts
    with monkeypatch.context() as patch:
        patch.setattr(ChoiceState, "advance", raises)
        failed = await kit.failure(chat("bad"))
        assert failed.code == "internal"
        await kit.until(lambda: counts.broken >= 3)  # enough for a breaker, from one request of a caller
    await kit.until(lambda: not counts.wants_control)
    assert counts.ended == 1  # the control that passed
    assert isinstance((await kit.run(chat("after")))[-1], Done)
    assert kit.metric("requests_total") == 2  # without the controls


def test_a_panic_is_an_ordinary_exception_and_nothing_else_is_changed() -> None:
    with pytest.raises(LibraryPanicked, match="out of bounds"):
        guarded(panics)
    with pytest.raises(KeyboardInterrupt):
        guarded(_interrupts)
    assert guarded(max, 1, 2) == 2


def _interrupts() -> None:
    raise KeyboardInterrupt
