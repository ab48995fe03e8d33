"""Groups that answer with written frames what no engine without weights says: reasoning, calls, faults.

Each serves one model, whose name says what it does. They send heartbeats, so a real router sends them work.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import decode, encode, pack_tokens
from shared.messages import (
    Accepted,
    AnswerPart,
    AnyFrame,
    Cancel,
    Delta,
    Done,
    Failed,
    FrameBatch,
    GenerateRequest,
    Heartbeat,
    Load,
    ModelCard,
    ReasoningPart,
    Resend,
    ResendReply,
    SamplingDefaults,
    TextPart,
    Tokens,
    ToolCallPart,
    Usage,
    Work,
)

BEAT_MS = 200
DEFAULTS = SamplingDefaults(temperature=0.2, top_p=0.9, top_k=0, min_p=0.0, repetition_penalty=1.0)
_PATCH = json.dumps({"input": '*** Begin Patch\n+say "\u00e9"\n*** End Patch'})
PARTS: dict[str, list[AnswerPart]] = {
    "thinks": [
        ReasoningPart(text="Let me "),
        ReasoningPart(text="see."),
        TextPart(text="It is"),
        TextPart(text=" “Ulm”\n"),
    ],
    "calls": [
        TextPart(text="I look."),
        ToolCallPart(index=0, call_id="call_a", name="weather", arguments='{"city":'),
        ToolCallPart(index=0, arguments='"Ulm"}'),
        ToolCallPart(index=1, call_id="call_b", name="time"),
        ToolCallPart(index=1, arguments="{}"),
    ],
    "thinks-and-calls": [
        ReasoningPart(text="Hm."),
        ToolCallPart(index=0, call_id="call_c", name="weather", arguments='{"city":"Ulm"}'),
    ],
    "patches": [
        ToolCallPart(index=0, call_id="call_p", name="patch"),
        *(ToolCallPart(index=0, arguments=_PATCH[at : at + 9]) for at in range(0, len(_PATCH), 9)),
    ],
}
# a pause in seconds, or what makes a frame by the request's ids
Moment = float | Callable[..., AnyFrame]
MODELS = (
    *PARTS,
    "words",
    "costly",
    "cut",
    "slow",
    "begins",
    "stuck",
    "refuses-late",
    "breaks",
    "full",
    "poisoned",
)


def moments(model: str, choices: int) -> list[Moment]:
    """What a model's group sends for one request, after it has accepted."""

    def tokens(text: str, finish: Any = None, parts: list[AnswerPart] | None = None) -> Moment:
        ids = pack_tokens(list(text.encode()))
        deltas = [
            Delta(choice=choice, text=text, token_ids=ids, finish_reason=finish, parts=parts or [])
            for choice in range(choices)
        ]
        return lambda **names: Tokens(deltas=deltas, **names)

    def done(finish: str, **usage: int) -> list[Moment]:
        counts = Usage(**{"prompt_tokens": 3, "completion_tokens": 4 * choices, **usage})
        return [tokens("", finish), lambda **names: Done(usage=counts, **names)]

    def failed(code: str, message: str, **data: Any) -> Moment:
        return lambda **names: Failed(code=code, message=message, data=data, **names)

    if model in PARTS:
        parts = PARTS[model]
        text = [tokens(part.text if isinstance(part, TextPart) else "", parts=[part]) for part in parts]
        calls = any(isinstance(part, ToolCallPart) for part in parts)
        return [*text, *done("tool_calls" if calls else "stop", reasoning_tokens=2)]
    words = [*map(tokens, ("Hello", ", ", 'you "there"', "\n")), *done("stop", cached_tokens=1)]
    too_long = failed("context_length_exceeded", "the prompt has 9000 tokens", param="messages")
    fault = failed("internal", "the group could not go on", reason="answer")
    written: dict[str, list[Moment]] = {
        "demo": words,
        "words": words,
        "costly": [tokens("Hello"), *done("stop", prompt_tokens=5000)],
        "cut": [tokens("Hello"), *done("length")],
        "begins": [tokens("Hel")],
        "slow": [moment for _ in range(2000) for moment in (tokens("word "), 0.01)],
        "refuses-late": [0.02, too_long],
        "breaks": [tokens("Hel"), 0.3, fault],
        "full": [failed("overloaded", "the group is full", retry_after_s=3.0)],
        "poisoned": [failed("poison", "two engines died under this request")],
        "stuck": [],
    }
    return written[model]


class ScriptedGroups:
    """All of them, on one connection.

    Args:
        bus: The connection.
        models: Those that are served.

    Attributes:
        request_ids: The last request of each tenant.
    """

    def __init__(self, bus: NatsBus, models: tuple[str, ...] = MODELS) -> None:
        self._bus = bus
        self._models = models
        self._cancelled: dict[str, asyncio.Event] = {}
        self._next_seqs: dict[str, int] = {}
        self.request_ids: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Subscribes, and begins to send heartbeats."""
        for model in self._models:
            await self._bus.subscribe(subjects.work(f"g-{model}"), self._take)
            await self._bus.subscribe(subjects.cancel(f"g-{model}"), self._cancel)
            await self._bus.subscribe(subjects.resend(f"g-{model}"), self._resend)
        await self._bus.subscribe(subjects.CANCEL_ALL, self._cancel)
        self._spawn(self._beat())

    async def stop(self) -> None:
        """Ends everything that runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def was_cancelled(self, tenant: str) -> bool:
        """Whether the last request of a tenant was cancelled."""
        return self._cancelled[self.request_ids[tenant]].is_set()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _beat(self) -> None:
        seq = 0
        while True:
            seq += 1
            for model in self._models:
                card = ModelCard(
                    name=model, context_length=1024, created_s=5, fingerprint="f", sampling=DEFAULTS
                )
                heartbeat = Heartbeat(
                    group=f"g-{model}", instance_id=f"i-{model}", seq=seq, interval_ms=BEAT_MS, state="ready",
                    model=card, load=Load(max_running=64, max_waiting=64),
                )  # fmt: skip
                await self._bus.publish(subjects.heartbeat(f"g-{model}"), encode(heartbeat))
            await asyncio.sleep(BEAT_MS / 1000)

    async def _take(self, message: Message) -> None:
        work = decode(message.data, Work)
        self._spawn(self._run(decode(work.request, GenerateRequest), work.reply_to))

    async def _run(self, request: GenerateRequest, reply_to: str) -> None:
        group, refuses = f"g-{request.model}", request.model in ("full", "poisoned")
        seq = 0 if refuses else 1
        names: dict[str, Any] = {"request_id": request.request_id, "attempt": request.attempt}
        session = request.session.session_id if request.session else ""
        sampling = request.sampling.missing_of(DEFAULTS)
        accepted = Accepted(
            **names, group=group, session_id=session, reason="scripted", kv="new", sampling=sampling,
            instance_id=f"i-{request.model}",
        )  # fmt: skip
        cancelled = self._cancelled.setdefault(request.request_id, asyncio.Event())
        self.request_ids[request.tenant] = request.request_id
        todo = moments(request.model, request.sampling.n)
        if not refuses:
            await self._send(reply_to, accepted)
        for moment in todo:
            if isinstance(moment, float):
                with suppress(TimeoutError):
                    await asyncio.wait_for(cancelled.wait(), moment)
                if cancelled.is_set():
                    return
                continue
            await self._send(reply_to, moment(**names, seq=seq))
            seq += 1

    async def _resend(self, message: Message) -> None:
        """Says that a request still runs; nothing that was sent gets lost here."""
        next_seq = self._next_seqs.get(decode(message.data, Resend).request_id, 0)
        await self._bus.publish(message.reply, encode(ResendReply(known=True, next_seq=next_seq)))

    async def _send(self, reply_to: str, frame: AnyFrame) -> None:
        self._next_seqs[frame.request_id] = frame.seq + 1
        batch = FrameBatch(frames=[frame], group="", instance_id="")
        await self._bus.publish(reply_to, encode(batch))

    async def _cancel(self, message: Message) -> None:
        request_id = decode(message.data, Cancel).request_id
        self._cancelled.setdefault(request_id, asyncio.Event()).set()
