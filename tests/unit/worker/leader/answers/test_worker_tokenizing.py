"""Tokenizing and chat templates do not block the leader's event loop; far too long prompts are refused."""

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.worker.domain.answers.choice_state import Detokenizer
from services.worker.leader.intake.prompt_tokenizer import (
    INLINE_CHARS,
    INLINE_COPIED,
    INLINE_RESUMED,
    PromptTokenizer,
)
from services.worker.leader.intake.tokenizer_threads import PER_TENANT, THREADS
from services.worker.metrics import WorkerMetrics
from services.worker.model_files.model import Model
from services.worker.null.model import ByteTokenizer, null_model
from services.worker.text.chat_template import ChatTemplate
from shared import kv_hash, subjects
from shared.codec import decode, encode, pack_tokens
from shared.errors import InvalidRequest
from shared.messages import (
    Cancel,
    ChatMessage,
    Done,
    Failed,
    GenerateRequest,
    ResumePoint,
    TemplateOptions,
    ToolDefinition,
    ToolUse,
)
from shared.messages.generate import MAX_CHOICES
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import until
from tests.kits.worker.leader import Kit, chat, null_engine, tokens_of

SLOW = (
    "{% if messages[-1].content.startswith('slow') %}"
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}{% endif %}"
    "{{ messages[-1].content }}"
)


class Counting(ByteTokenizer):
    """A tokenizer that records the lengths of its texts."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.lengths.append(len(text))
        return super().encode(text, add_special_tokens=add_special_tokens)


def counting(template: str = "{{ messages[-1].content }}") -> tuple[Model, Counting]:
    tokenizer = Counting()
    made = replace(null_model("demo", 2048), tokenizer=tokenizer, template=ChatTemplate(template, {}))
    return made, tokenizer


@pytest.mark.parametrize("given", ["messages", "prompt", "prompt_token_ids"])
async def test_what_cannot_fit_is_refused_before_it_is_tokenized(given: str) -> None:
    model, tokenizer = counting()
    text = "x" * 600_000
    prompts: dict[str, Any] = {
        "messages": [ChatMessage(role="user", content=text)],
        "prompt": text,
        "prompt_token_ids": pack_tokens([1] * 100_000),
    }
    async with Kit(MemoryBus(), model=model) as kit:
        tokenizer.lengths.clear()
        failed = await kit.failure(chat("r", "", **{given: prompts[given]}))
        assert failed.code == "context_length_exceeded"
        assert (
            "maximum context length is 2048 tokens for model demo, the prompt has at least" in failed.message
        )
        assert tokenizer.lengths == []


async def test_more_messages_than_the_context_has_tokens_are_refused_before_they_are_rendered() -> None:
    model, tokenizer = counting("{{ raise_exception('it was rendered') }}")
    messages = [ChatMessage(role="user", content="")] * 2049
    async with Kit(MemoryBus(), model=model) as kit:
        tokenizer.lengths.clear()
        failed = await kit.failure(chat("r", messages=messages))
        assert failed.code == "context_length_exceeded"
        assert "the prompt has at least 2049" in failed.message
        assert tokenizer.lengths == []


TOOLS = ToolUse(tools=[ToolDefinition(name=f"t{i}", description="d" * 30) for i in range(100)])


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tools": TOOLS}, "tools", "most of them for `tools`: send fewer tools"),
        (
            {"template": TemplateOptions(variables=json.dumps({"extra": "x" * 3000}))},
            "template",
            "most of them for the variables of the template: send shorter documents",
        ),
        ({"tools": TOOLS, "content": "x" * 9000}, "messages", "shorten the prompt"),
        ({"content": "x" * 9000}, "messages", "shorten the prompt"),
    ],
)
async def test_what_fills_the_context_is_named(fields: dict[str, Any], param: str, said: str) -> None:
    template = "{% for one in tools or [] %}{{ one }}{% endfor %}{{ extra or '' }}{{ messages[-1].content }}"
    model, _ = counting(template)
    async with Kit(MemoryBus(), model=model) as kit:
        given = dict(fields)
        failed = await kit.failure(chat("r", given.pop("content", "hello"), **given))
        assert (failed.code, failed.data["param"]) == ("context_length_exceeded", param)
        assert said in failed.message


class Holding(ByteTokenizer):
    """A tokenizer that blocks on each text whose second letter is X until `go` is released.

    Attributes:
        go: Released once for each text that may continue.
        order: The first letters of the blocked texts, in order.
    """

    def __init__(self) -> None:
        self.go, self.order = threading.Semaphore(0), list[str]()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if text[1:2] == "X":
            self.order.append(text[0])
            self.go.acquire(timeout=20)
        return super().encode(text, add_special_tokens=add_special_tokens)


async def test_a_tenant_with_many_long_prompts_leaves_a_thread_and_rotates() -> None:
    tokenizer, long = Holding(), "X" + "x" * INLINE_CHARS
    model = replace(null_model("demo", 8192), tokenizer=tokenizer)
    async with Kit(MemoryBus(), null_engine(context=8192, blocks=4096), model=model) as kit:
        try:
            for number in range(6):
                await kit.ask(chat(f"a{number}", tenant="many", prompt=f"a{long}"))
            await until(lambda: len(tokenizer.order) == PER_TENANT)
            # another tenant's prompt is tokenized although none of these has ended
            free = chat("f", tenant="few", prompt="f" + "x" * INLINE_CHARS)
            assert isinstance((await kit.run(free))[-1], Done)
            for number in range(2):
                await kit.ask(chat(f"b{number}", tenant="other", prompt=f"b{long}"))
            await until(lambda: len(tokenizer.order) == THREADS)
            assert tokenizer.order == ["a", "a", "b"]
            await kit.ask(chat("c0", tenant="third", prompt=f"c{long}"))
            await asyncio.sleep(0.05)
            for _ in range(3):
                before = len(tokenizer.order)
                tokenizer.go.release()
                await until(lambda: len(tokenizer.order) > before)  # noqa: B023 (asked in this round only)
            assert sorted(tokenizer.order[THREADS:]) == ["a", "b", "c"]  # not three of tenant `many`
        finally:
            tokenizer.go.release(10)
        for request_id in ("a5", "b1", "c0"):
            assert isinstance((await kit.end_of(request_id))[-1], Done)
        assert len(tokenizer.order) == 9


async def test_a_prompt_whose_caller_left_keeps_its_thread_until_it_is_done() -> None:
    tokenizer, long = Holding(), "X" + "x" * INLINE_CHARS
    model = replace(null_model("demo", 8192), tokenizer=tokenizer)
    async with Kit(MemoryBus(), null_engine(context=8192, blocks=4096), model=model) as kit:
        try:
            for number in range(4):
                await kit.ask(chat(f"a{number}", tenant="many", prompt=f"a{long}"))
            await until(lambda: len(tokenizer.order) == PER_TENANT)
            for number in range(3):  # two in threads, one waiting
                cancel = Cancel(request_id=f"a{number}", tenant="many")
                await kit.bus.publish(subjects.cancel("g0"), encode(cancel))
            await asyncio.sleep(0.05)
            assert len(tokenizer.order) == PER_TENANT
        finally:
            tokenizer.go.release(10)
        assert isinstance((await kit.end_of("a3"))[-1], Done)
        assert len(tokenizer.order) == PER_TENANT + 1


async def test_a_slow_template_costs_its_request_and_not_the_others() -> None:
    model, _ = counting(SLOW)
    async with Kit(MemoryBus(), model=model, tokenize_timeout_s=1.0) as kit:
        for number in range(3):
            await kit.ask(chat(f"slow{number}", "slow", tenant="slow"))
        assert isinstance((await kit.run(chat("quick")))[-1], Done)
        slow = [frame for number in range(3) for frame in kit.frames[f"slow{number}"]]
        assert not any(isinstance(frame, Failed) for frame in slow)  # their templates still render
        for number in range(3):
            failed = (await kit.end_of(f"slow{number}"))[-1]
            assert (failed.code, failed.data["reason"]) == ("deadline_exceeded", "tokenizing")  # type: ignore[union-attr]
        assert kit.metric("slow_prompts_total") == 3
        assert isinstance((await kit.run(chat("again")))[-1], Done)


class Watched(ByteTokenizer):
    """A tokenizer that records the threads using it.

    Attributes:
        threads: Names of the threads that made a detokenizer.
        encoded: Names of the threads that encoded a text.
        holds: Whether tokenizing threads block on `go` before they detokenize.
        go: Released once for each thread that may continue.
        held: How many times a thread has blocked.
    """

    def __init__(self) -> None:
        self.threads: set[str] = set()
        self.encoded: set[str] = set()
        self.go = threading.Semaphore(0)
        self.holds = False
        self.held = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.encoded.add(threading.current_thread().name)
        return super().encode(text, add_special_tokens=add_special_tokens)

    def detokenizer(self) -> Detokenizer:
        name = threading.current_thread().name
        self.threads.add(name)
        if self.holds and name.startswith("tokenize"):
            self.held += 1
            self.go.acquire(timeout=20)
        return super().detokenizer()


def resumed(request_id: str, tokens: int, **fields: Any) -> GenerateRequest:
    resume = {"token_ids": [pack_tokens([97] * tokens)], "next_seq": 2}
    return chat(request_id, attempt=1, resume=resume, sampling={"max_tokens": 1000, "stop": ["zz"]}, **fields)


async def test_only_the_text_of_long_resume_points_is_made_in_a_thread() -> None:
    tokenizer = Watched()
    model = replace(null_model("demo", 2048), tokenizer=tokenizer)
    async with Kit(MemoryBus(), model=model) as kit:
        short = await kit.run(resumed("short", INLINE_RESUMED))
        assert tokenizer.threads == {threading.current_thread().name}
        tokenizer.threads.clear()
        long = await kit.run(resumed("long", INLINE_RESUMED + 1))
        (thread,) = tokenizer.threads
        assert thread.startswith("tokenize")
        assert len(tokens_of(short)) == 1000 - INLINE_RESUMED
        assert tokens_of(short)[1:] == tokens_of(long)
        await kit.all_free()


async def test_the_choices_of_long_prompts_are_made_and_named_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named: list[str] = []
    extend = kv_hash.extend

    def noted(parent: bytes, token_ids: list[int]) -> bytes:
        named.append(threading.current_thread().name)
        return extend(parent, token_ids)

    monkeypatch.setattr(kv_hash, "extend", noted)
    tokenizer, sampling = Watched(), {"n": 16, "max_tokens": 2}
    model = replace(null_model("demo", 4096), tokenizer=tokenizer)
    most = INLINE_COPIED // 16
    async with Kit(MemoryBus(), null_engine(context=4096, blocks=8192), model=model) as kit:
        short = chat("short", prompt_token_ids=pack_tokens([7] * most), sampling=sampling)
        assert isinstance((await kit.run(short))[-1], Done)
        assert tokenizer.threads == {threading.current_thread().name}
        assert len(named) == most // 16  # once for all choices
        tokenizer.threads.clear()
        named.clear()
        long = chat("long", prompt_token_ids=pack_tokens([8] * (most + 1)), sampling=sampling)
        assert isinstance((await kit.run(long))[-1], Done)
        (thread,) = tokenizer.threads
        assert thread.startswith("tokenize")
        assert named == [thread] * (most // 16)


async def test_long_resume_points_rotate_over_tenants_and_leave_the_loop_free() -> None:
    tokenizer = Watched()
    model = replace(null_model("demo", 2048), tokenizer=tokenizer)
    async with Kit(MemoryBus(), model=model) as kit:
        tokenizer.holds = True
        try:
            for number in range(5):
                await kit.ask(resumed(f"a{number}", 900, tenant="many"))
            await until(lambda: tokenizer.held == PER_TENANT)
            assert isinstance((await kit.run(chat("quick")))[-1], Done)
            await kit.ask(resumed("b", 900, tenant="few"))
            await until(lambda: tokenizer.held == THREADS)
            await kit.bus.publish(subjects.cancel("g0"), encode(Cancel(request_id="a0", tenant="many")))
            assert (await kit.end_of("a0"))[-1].code == "cancelled"  # type: ignore[union-attr]
        finally:
            tokenizer.go.release(10)
        for request_id in ("a1", "a4", "b"):
            assert isinstance((await kit.end_of(request_id))[-1], Done)
        await kit.all_free()


async def test_a_resume_point_longer_than_any_answer_is_refused_before_the_prompt_is_tokenized() -> None:
    model, tokenizer = counting()
    async with Kit(MemoryBus(), model=model) as kit:
        tokenizer.lengths.clear()
        failed = await kit.failure(resumed("r", 1001))
        assert (failed.code, failed.data["param"]) == ("invalid_request", "resume")
        tokens = [pack_tokens([97] * 2049)]
        failed = await kit.failure(
            chat("s", resume={"token_ids": tokens, "next_seq": 2}, sampling={"max_tokens": 0})
        )
        assert "which may have 2048" in failed.message
        assert tokenizer.lengths == []


def test_a_resume_point_has_no_more_entries_than_a_request_has_choices() -> None:
    point = ResumePoint(token_ids=[b""] * (MAX_CHOICES + 1), next_seq=0)
    with pytest.raises(InvalidRequest, match="length <= 16"):
        decode(encode(point), ResumePoint)


class Clocked(ByteTokenizer):
    """A tokenizer with a clock that advances by 1 ms per character."""

    def __init__(self) -> None:
        self.now = 100.0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.now += len(text) / 1000
        return super().encode(text, add_special_tokens=add_special_tokens)


async def test_a_tenant_whose_short_prompts_take_long_has_them_tokenized_in_threads_for_the_second() -> None:
    tokenizer = Clocked()
    model = replace(null_model("demo", 2048), tokenizer=tokenizer)
    metrics = WorkerMetrics(CollectorRegistry())
    tokenizing = PromptTokenizer(
        model, metrics, lambda: 2048, clock=lambda: tokenizer.now, cpu_clock=lambda: tokenizer.now
    )

    def at_once(tenant: str, chars: int) -> bool:
        return tokenizing.tokenize_inline(chat("r", tenant=tenant, prompt="x" * chars), None) is not None

    try:
        assert [at_once("many", 20) for _ in range(4)] == [True, True, True, False]
        assert at_once("few", 20)
        assert not at_once("many", 1)
        assert len(await tokenizing.tokenize_in_thread(chat("r", tenant="many", prompt="xx"), None)) == 2
        tokenizer.now += 1.0
        assert at_once("many", 20)
    finally:
        tokenizing.threads.stop_threads()


async def test_prompts_that_cost_less_than_a_thread_are_tokenized_at_once_however_many_come() -> None:
    class Quick(Clocked):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            self.now += 0.0005  # a short question on a slow machine
            return ByteTokenizer.encode(self, text, add_special_tokens=add_special_tokens)

    tokenizer = Quick()
    model = replace(null_model("demo", 2048), tokenizer=tokenizer)
    metrics = WorkerMetrics(CollectorRegistry())
    tokenizing = PromptTokenizer(
        model, metrics, lambda: 2048, clock=lambda: tokenizer.now, cpu_clock=lambda: tokenizer.now
    )
    try:
        for _ in range(1000):
            assert tokenizing.tokenize_inline(chat("r", prompt="xx"), None) is not None
    finally:
        tokenizing.threads.stop_threads()


async def test_pauses_of_a_busy_machine_do_not_send_short_prompts_to_threads() -> None:
    tokenizer = Clocked()
    model = replace(null_model("demo", 2048), tokenizer=tokenizer)
    metrics = WorkerMetrics(CollectorRegistry())
    tokenizing = PromptTokenizer(
        model, metrics, lambda: 2048, clock=lambda: tokenizer.now / 100, cpu_clock=lambda: 0.0
    )
    try:
        for _ in range(100):
            assert tokenizing.tokenize_inline(chat("r", prompt="x" * 20), None) is not None
    finally:
        tokenizing.threads.stop_threads()


async def test_a_request_of_a_tenant_without_inline_time_runs_its_course(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.worker.leader.intake.prompt_tokenizer.INLINE_S", 0.0)
    tokenizer = Watched()
    model = replace(null_model("demo", 2048), tokenizer=tokenizer)
    async with Kit(MemoryBus(), model=model) as kit:
        assert isinstance((await kit.run(chat("r")))[-1], Done)
        assert isinstance((await kit.run(chat("p", prompt="hello")))[-1], Done)
        (thread,) = tokenizer.encoded
        assert thread.startswith("tokenize")


@pytest.mark.parametrize(
    ("fields", "short"),
    [
        ({"prompt": "x" * INLINE_CHARS}, True),
        ({"prompt": "x" * (INLINE_CHARS + 1)}, False),
        ({"prompt": "中" * (INLINE_CHARS // 2)}, True),
        ({"prompt": "中" * (INLINE_CHARS // 2 + 1)}, False),
        ({"messages": [{"role": "user", "content": "é" * INLINE_CHARS}]}, False),
        ({"messages": [{"role": "user", "content": "", "name": "x" * (INLINE_CHARS + 1)}]}, False),
    ],
)
def test_other_texts_than_ascii_count_twice_and_names_count_too(fields: dict[str, Any], short: bool) -> None:
    tokenizing = PromptTokenizer(null_model("demo", 2048), WorkerMetrics(CollectorRegistry()), lambda: 2048)
    assert tokenizing.is_short(chat("r", **fields)) is short
    tokenizing.threads.stop_threads()


@pytest.mark.parametrize("given", ["messages", "prompt", "prompt_token_ids"])
async def test_a_token_that_the_engine_does_not_have_is_refused_whatever_made_it(given: str) -> None:
    prompts: dict[str, Any] = {
        "messages": [ChatMessage(role="user", content="z")],
        "prompt": "z",
        "prompt_token_ids": pack_tokens([122]),
    }
    async with Kit(MemoryBus(), null_engine(vocab_size=120)) as kit:
        failed = await kit.failure(chat("r", "", **{given: prompts[given]}))
    assert (failed.code, failed.data["param"]) == ("invalid_request", given)
    assert failed.message == f"{given} has token 122, the vocabulary ends at 119"
