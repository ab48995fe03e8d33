"""Grammars compiled on trial: in a real process, killed at its limits, whose loss costs no request."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.worker.leader.grammar_trials import trial_connection
from services.worker.leader.intake.answer_forms import AnswerForms
from services.worker.leader.intake.answer_grammars import AnswerGrammars
from services.worker.leader.intake.grammar_options import GrammarOptions
from services.worker.null.model import null_model
from services.worker.text.answers.known_formats import TOOL_FORMATS
from services.worker.text.grammars.answer_grammar import AnswerForm
from services.worker.text.grammars.limits import GrammarLimits
from shared.messages import StructuredOutput, ToolDefinition, ToolUse
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S, until, wait_for
from tests.kits.worker.leader import Kit, chat, text_of

LIMITS = GrammarLimits(intersections=1000)  # lets bombs pass that are refused otherwise
MIB = 2**20
PLENTY = 4096 * MIB  # a fast machine takes 256 MiB within a second


def bomb(patterns: int = 40) -> dict[str, Any]:
    """A schema that takes time and memory that double with each pattern: 4 s and 200 MiB for 20."""
    schema = {"type": "string", "allOf": [{"pattern": f"^.*name{n}.*$"} for n in range(patterns)]}
    return {"structured": {"kind": "json_schema", "definition": json.dumps(schema)}}


def number(digits: int = 1) -> dict[str, Any]:
    return {"structured": {"kind": "regex", "definition": f"[1-9]{{{digits}}}"}}


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def memory(pid: int) -> int:
    """The most memory that a process had, in bytes; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"  # its parent is gone, and whatever collects orphans is not ours


def trial_pid(kit: Kit) -> int:
    return kit.leader.parts.grammars.trials.pid


async def first_trial(kit: Kit) -> None:
    """Starts the trial process, and waits until it has no trial any more."""
    assert len(text_of(await kit.run(chat("first", prompt="x", **number(1))))) == 1
    await until(lambda: not children(trial_pid(kit)))


async def a_trial(kit: Kit) -> int:
    """Waits for a trial that runs, and returns its process id."""
    await until(lambda: bool(trial_pid(kit) and children(trial_pid(kit))))
    return children(trial_pid(kit))[0]


async def test_a_bomb_is_ended_at_its_limit_of_time_and_others_are_served_meanwhile(
    memory_bus: MemoryBus,
) -> None:
    options = GrammarOptions(grammar_timeout_s=1.0, trial_bytes=PLENTY, limits=LIMITS)
    async with Kit(memory_bus, grammars=options) as kit:
        await first_trial(kit)
        ended = asyncio.create_task(kit.failure(chat("bomb", prompt="x", tenant="hostile", **bomb())))
        pid = await a_trial(kit)
        assert len(text_of(await kit.run(chat("other", prompt="x", tenant="other", **number(2))))) == 2
        assert not ended.done()
        failed = await ended
        assert (failed.code, failed.data["param"]) == ("invalid_request", "structured")
        assert "not compiled within 1 s of CPU time (RYZ_GRAMMAR_TIMEOUT_S)" in failed.message
        await until(lambda: is_gone(pid))
        # the leader compiled the others only, and the tenant's place is free
        assert kit.metric("grammar_seconds_count") == 2
        assert len(text_of(await kit.run(chat("next", prompt="x", tenant="hostile", **number(3))))) == 3
        again = await kit.failure(chat("again", prompt="x", tenant="third", **bomb()))  # known by now
        assert (again.message, kit.metric("grammar_trials_total", outcome="slow")) == (failed.message, 1)


async def test_a_bomb_gets_no_more_memory_than_its_limit(memory_bus: MemoryBus) -> None:
    options = GrammarOptions(grammar_timeout_s=60.0, trial_bytes=48 * MIB, limits=LIMITS)
    async with Kit(memory_bus, grammars=options) as kit:
        await first_trial(kit)
        before = memory(trial_pid(kit))
        ended = asyncio.create_task(kit.failure(chat("bomb", prompt="x", **bomb())))
        pid, most = await a_trial(kit), 0
        while not ended.done():
            most = max(most, memory(pid))
            await asyncio.sleep(0.005)
        failed = await ended
        assert (failed.code, failed.data["param"]) == ("invalid_request", "structured")
        assert "not compiled within 48 MiB of memory" in failed.message
        assert 8 * MIB < most - before < 48 * MIB
        assert kit.metric("grammar_trials_total", outcome="large") == 1


async def test_hostile_tenants_together_do_not_keep_another_one_out(memory_bus: MemoryBus) -> None:
    options = GrammarOptions(grammar_timeout_s=0.3, trial_bytes=PLENTY, limits=LIMITS)
    async with Kit(memory_bus, grammars=options) as kit:
        await first_trial(kit)
        for each in range(6):
            for tenant in ("hostile", "worse"):
                await kit.ask(chat(f"{tenant}{each}", prompt="x", tenant=tenant, **bomb(40 + each)))
        await a_trial(kit)
        async with asyncio.timeout(PATIENCE_S):
            for digits in (2, 3, 4):
                text, attempt = "", 0
                while len(text) != digits:  # on a busy machine it may be asked to try again
                    attempt += 1
                    name = f"r{digits}-{attempt}"
                    text = text_of(await kit.run(chat(name, prompt="x", tenant="other", **number(digits))))
        assert kit.metric("grammar_trials_total", outcome="passed") >= 4
        for each in range(6):
            for tenant in ("hostile", "worse"):
                await kit.end_of(f"{tenant}{each}")


async def test_a_refusal_on_trial_is_the_compilers_own(memory_bus: MemoryBus) -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    asked: dict[str, Any] = {"structured": {"kind": "json_schema", "definition": json.dumps(schema)}}
    async with Kit(memory_bus) as kit:
        failed = await kit.failure(chat("a", prompt="x", **asked))
        assert failed.data == {"param": "structured", "keyword": "uniqueItems", "pointer": "/properties/tags"}
        assert kit.metric("grammar_trials_total", outcome="refused") == 1
        assert kit.metric("grammar_seconds_count") == 0


async def test_a_lost_trial_process_costs_no_request(memory_bus: MemoryBus) -> None:
    options = GrammarOptions(grammar_timeout_s=1.0, trial_bytes=PLENTY, limits=LIMITS)
    async with Kit(memory_bus, grammars=options) as kit:
        ended = asyncio.create_task(kit.failure(chat("bomb", prompt="x", tenant="hostile", **bomb())))
        trial, process = await a_trial(kit), trial_pid(kit)
        os.kill(process, signal.SIGKILL)
        assert len(text_of(await kit.run(chat("next", prompt="x", **number(2))))) == 2
        assert trial_pid(kit) not in (0, process)
        assert "not compiled within 1 s" in (await ended).message  # it was tried once more
        await until(lambda: is_gone(trial) and is_gone(process))
        assert kit.metric("grammar_trials_total", outcome="passed") == 1
        assert kit.metric("grammar_trials_total", outcome="unavailable") == 0


async def test_a_trial_that_is_killed_from_outside_may_be_asked_for_again(memory_bus: MemoryBus) -> None:
    options = GrammarOptions(grammar_timeout_s=20.0, trial_bytes=PLENTY, limits=LIMITS)
    async with Kit(memory_bus, grammars=options) as kit:
        ended = asyncio.create_task(kit.failure(chat("bomb", prompt="x", **bomb())))
        os.kill(await a_trial(kit), signal.SIGKILL)
        failed = await ended
        assert (failed.code, failed.data["retry_after_s"]) == ("overloaded", 1.0)
        assert len(text_of(await kit.run(chat("next", prompt="x", **number(2))))) == 2


async def test_without_a_trial_process_grammars_are_compiled_all_the_same(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_connection, "COMMAND", [sys.executable, "-c", "pass"])
    async with Kit(memory_bus) as kit:
        for digits in (1, 2):
            frames = await kit.run(chat(f"r{digits}", prompt="x", **number(digits)))
            assert len(text_of(frames)) == digits
        assert kit.metric("grammar_trials_total", outcome="unavailable") == 2
    monkeypatch.setattr(trial_connection, "COMMAND", ["/no/such/program"])
    async with Kit(memory_bus) as kit:
        assert len(text_of(await kit.run(chat("r", prompt="x", **number(3))))) == 3
        assert kit.metric("grammar_trials_total", outcome="unavailable") == 1


async def test_lists_of_constants_need_no_trial_and_a_leader_that_stops_leaves_no_process(
    memory_bus: MemoryBus,
) -> None:
    options = GrammarOptions(grammar_timeout_s=20.0, trial_bytes=PLENTY, limits=LIMITS)
    async with Kit(memory_bus, grammars=options) as kit:
        choice: dict[str, Any] = {"structured": {"kind": "choice", "choices": ["yes"]}}
        assert text_of(await kit.run(chat("choice", prompt="x", **choice))) == "yes"
        assert trial_pid(kit) == 0
        await kit.ask(chat("bomb", prompt="x", **bomb()))
        trial, process = await a_trial(kit), trial_pid(kit)
    assert is_gone(process)
    await until(lambda: is_gone(trial))


LEADER = """
    import asyncio, msgspec
    from prometheus_client import CollectorRegistry
    from services.worker.leader.grammar_trials.grammar_trials import GrammarTrials
    from services.worker.leader.intake.grammar_options import GrammarOptions
    from services.worker.metrics import WorkerMetrics
    from services.worker.null.model import END, ByteTokenizer
    from services.worker.text.grammars.token_vocabulary import TokenVocabulary
    from tests.unit.worker.leader.answers.test_worker_grammar_trials import LIMITS, bomb_form

    async def main():
        options = GrammarOptions(grammar_timeout_s=60.0, limits=LIMITS)
        trials = GrammarTrials(options, WorkerMetrics(CollectorRegistry()))
        vocabulary = TokenVocabulary(ByteTokenizer(), {END}, 257)
        running = asyncio.create_task(trials.compile_on_trial(bomb_form(), vocabulary))
        while not trials.pid:
            await asyncio.sleep(0.01)
        print(trials.pid, flush=True)
        await running

    asyncio.run(main())
"""


def bomb_form() -> bytes:
    return msgspec.msgpack.encode(AnswerForm(StructuredOutput(**bomb()["structured"]), None))


def test_a_leader_that_is_killed_leaves_no_process() -> None:
    command = [sys.executable, "-c", textwrap.dedent(LEADER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        process = int(leader.stdout.readline())
        wait_for(lambda: bool(children(process)), "it has children")
        pids = [process, *children(process)]
        leader.kill()
    wait_for(lambda: all(map(is_gone, pids)), "all are gone")


@pytest.mark.parametrize("form", [known.name for known in TOOL_FORMATS if known.calls])
def test_what_is_compiled_arrives_at_a_trial_as_it_was(form: str) -> None:
    model = null_model("m", 1024)
    tool = ToolDefinition(name="f", parameters='{"type":"object","properties":{"a":{"type":"integer"}}}')
    request = chat("r", tools=ToolUse(tools=[tool], choice="required", format=form))
    grammar = AnswerGrammars(model, AnswerForms(model)).grammar_of(request)
    assert grammar is not None
    arrived = msgspec.msgpack.decode(grammar.trial, type=AnswerForm)
    assert arrived.calls is not None
    assert msgspec.msgpack.encode(arrived) == grammar.trial
    assert (arrived.text, list(arrived.calls.tools), arrived.calls.syntax) == (
        None,
        [tool],
        next(known.calls[0] for known in TOOL_FORMATS if known.name == form),
    )
