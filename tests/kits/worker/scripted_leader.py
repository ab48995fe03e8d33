"""A scripted leader for tests of callers: sends given frames, loses some, and keeps all for resends.

It subscribes to `generate` directly, so tests need no router.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from shared import subjects
from shared.bus import Bus, Message, Subscription
from shared.codec import decode, encode, pack_tokens, unpack_tokens
from shared.messages import (
    Accepted,
    AnyFrame,
    Cancel,
    Delta,
    Done,
    FrameBatch,
    GenerateRequest,
    Resend,
    ResendReply,
    Tokens,
    Usage,
)

Script = Callable[[GenerateRequest], list[AnyFrame]]


def answer(request: GenerateRequest, num_tokens: int = 4, group: str = "g0") -> list[AnyFrame]:
    """Accepted, one frame for each token, and Done; for a resumed request only the remaining ones."""
    names: dict[str, Any] = {"request_id": request.request_id, "attempt": request.attempt}
    session_id = request.session.session_id if request.session else ""
    resume = request.resume
    first = resume.next_seq if resume else 0
    frames: list[AnyFrame] = [Accepted(**names, seq=first, group=group, session_id=session_id)]
    for n in range(len(unpack_tokens(resume.token_ids[0])) if resume else 0, num_tokens):
        delta = Delta(
            text=f"w{n} ",
            token_ids=pack_tokens([n]),
            finish_reason="length" if n == num_tokens - 1 else None,
        )
        frames.append(Tokens(**names, seq=first + len(frames), deltas=[delta]))
    usage = Usage(prompt_tokens=3, completion_tokens=num_tokens)
    frames.append(Done(**names, seq=first + len(frames), usage=usage))
    return frames


class ScriptedLeader:
    """Answers each request with the frames of `script(request)`, and keeps every message it receives.

    Attributes:
        lose: Numbers of the frames that are not sent.
        duplicate: Numbers of the frames that are sent twice.
        order: Numbers of the frames in the order of sending; None for their own order.
        silent: Whether requests are not answered.
        requests: Requests received; `cancels` and `resends` likewise.
    """

    def __init__(self, bus: Bus, *, group: str = "g0", script: Script | None = None) -> None:
        self.bus = bus
        self.group = group
        self.script: Script = script or (lambda request: answer(request, group=group))
        self.lose: set[int] = set()
        self.duplicate: set[int] = set()
        self.order: list[int] | None = None
        self.silent = False
        self.pause_s = 0.0
        self.says_group = True
        self.resend_limit = 1000
        self.requests: list[GenerateRequest] = []
        self.headers: list[dict[str, str]] = []
        self.cancels: list[Cancel] = []
        self.resends: list[Resend] = []
        self.kept: dict[str, list[AnyFrame]] = {}
        self.cancelled = asyncio.Event()
        self._subscriptions: list[Subscription] = []

    async def start(self) -> "ScriptedLeader":
        """Subscribes to its subjects."""
        for subject, handler, many in (
            (subjects.GENERATE_ALL, self._work, 64),
            (subjects.resend(self.group), self._resend, 0),
            (subjects.cancel(self.group), self._cancel, 0),
            (subjects.CANCEL_ALL, self._cancel, 0),
        ):
            self._subscriptions.append(await self.bus.subscribe(subject, handler, max_concurrent=many))
        return self

    async def stop(self) -> None:
        """Ends all subscriptions, as if the leader had died."""
        for subscription in self._subscriptions:
            await subscription.unsubscribe()

    async def send(self, request: GenerateRequest, frames: Iterable[AnyFrame]) -> None:
        """Sends frames unchanged, in one batch."""
        batch = FrameBatch(frames=list(frames), group=self.group if self.says_group else "")
        await self.bus.publish(request.reply_to, encode(batch))

    async def _work(self, message: Message) -> None:
        request = decode(message.data, GenerateRequest)
        self.requests.append(request)
        self.headers.append(dict(message.headers))
        if self.silent:
            return
        frames = self.kept.get(request.request_id, [])
        if not frames or frames[0].attempt < request.attempt:
            frames = self.kept[request.request_id] = self.script(request)
        for number in self.order or range(len(frames)):
            if number in self.lose:
                continue
            for _ in range(2 if number in self.duplicate else 1):
                await self.send(request, [frames[number]])
            if self.pause_s:
                await asyncio.sleep(self.pause_s)

    async def _resend(self, message: Message) -> None:
        resend = decode(message.data, Resend)
        self.resends.append(resend)
        frames = self.kept.get(resend.request_id)
        if frames is None:
            reply = ResendReply(known=False)
        else:
            missing = [frame for frame in frames if frame.seq >= resend.from_seq][: self.resend_limit]
            reply = ResendReply(known=True, next_seq=frames[-1].seq + 1, frames=missing)
        await self.bus.publish(message.reply, encode(reply))

    async def _cancel(self, message: Message) -> None:
        self.cancels.append(decode(message.data, Cancel))
        self.cancelled.set()
