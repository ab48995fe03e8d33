"""Which answers are cut off because their readers do not read, or because answers take too much memory.

`cuts` decides, from what each answer has unread; `watch_readers` asks it, a few times a second. An answer
waits for its reader first: it is cut off only when that lasts too long, or when too much piles up meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.errors import Cancelled, DeadlineExceeded, Overloaded, RyzError

WATCH_S = 0.25


@dataclass(frozen=True, slots=True)
class Unread:
    """An answer under way.

    num_bytes: made and not taken by its reader. waited_s: since that took the last piece; 0: none is sent.
    behind: the part of what may pile up for one answer that has piled up, from 0 to 1.
    late: the time that its caller gave it is over.
    """

    tenant: str
    num_bytes: int
    waited_s: float = 0.0
    behind: float = 0.0
    late: bool = False


class Answer(Protocol):
    """What has to be known of an answer under way."""

    @property
    def reason(self) -> Exception | None:
        """Why it was ended early; None: it was not."""

    def unread(self, now_s: float) -> Unread:
        """What it has unread; `now_s` is on the loop's clock."""
        ...

    def abort(self, reason: Exception) -> None:
        """Ends it; the first reason counts."""


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """wait_s: for a piece to be taken. total, of_tenant: bytes of all answers, and of one tenant's."""

    wait_s: float
    total: int
    of_tenant: int


def cuts(answers: Sequence[Unread], limits: ReaderLimits) -> dict[int, RyzError]:
    """Those that end now, by their place in `answers`, and what they are told."""
    cut: dict[int, RyzError] = {
        place: _slow(answer, limits)
        for place, answer in enumerate(answers)
        if answer.late or answer.waited_s > limits.wait_s or (answer.waited_s and answer.behind > 0.5)
    }
    held: Counter[str] = Counter()
    for place, answer in enumerate(answers):
        if place not in cut:
            held[answer.tenant] += answer.num_bytes
    if held.total() <= min(limits.total, limits.of_tenant):
        return cut
    for place in sorted(range(len(answers)), key=lambda place: -answers[place].num_bytes):
        answer = answers[place]
        over = held.total() > limits.total or held[answer.tenant] > limits.of_tenant
        if over and place not in cut and answer.num_bytes:
            cut[place] = Overloaded(
                "unread answers take more memory than RYZ_MAX_UNREAD_BYTES allows, and this one of tenant "
                f"{answer.tenant!r} is among the largest, with {answer.num_bytes} bytes; read faster, or ask "
                "for less",
                reason="gateway_memory",
                retry_after_s=1.0,
            )
            held[answer.tenant] -= answer.num_bytes
    return cut


def _slow(answer: Unread, limits: ReaderLimits) -> RyzError:
    if answer.late:
        return DeadlineExceeded("the caller did not read the answer in the time it gave the request")
    return Cancelled(
        f"the answer was not read: {answer.num_bytes} bytes wait, the last piece for {answer.waited_s:.1f} s "
        f"(RYZ_WRITE_TIMEOUT_S: {limits.wait_s:g}); read faster, or come back to the stream",
        reason="slow_reader",
    )


async def watch_readers(
    running: Collection[Answer], limits: ReaderLimits, on_cut: Callable[[], None]
) -> None:
    """Ends the answers under way that have to be, for as long as it runs."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(WATCH_S)
        answers = [answer for answer in running if answer.reason is None]
        for place, reason in cuts([answer.unread(loop.time()) for answer in answers], limits).items():
            on_cut()
            answers[place].abort(reason)
