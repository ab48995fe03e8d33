"""Cuts off answers whose readers do not read, or that take too much memory while they wait.

`answers_to_cut` decides, from what each answer has unread; `watch_readers` asks it a few times a second. An
answer waits for its reader first: it is cut off only when that lasts too long, or when too much piles up.
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
    """The output of an answer under way that its reader has not taken.

    Attributes:
        party: For whom it counts; see `parties.py`.
        num_bytes: Bytes that wait.
        waited_s: Seconds since the reader took the last piece; 0 if no piece is being sent.
        behind: The bytes or frames that wait, as a part of those that one answer may have, from 0 to 1.
        late: The time that the caller gave its request is over, and nothing else has ended the answer.
    """

    party: str
    num_bytes: int
    waited_s: float = 0.0
    behind: float = 0.0
    late: bool = False


class OpenAnswer(Protocol):
    """An answer under way, as far as it is watched."""

    @property
    def reason(self) -> Exception | None:
        """The reason for ending the answer early; None if it was not."""

    def unread(self, now_s: float) -> Unread:
        """Measures what its reader has not taken; `now_s` is on the loop's clock."""
        ...

    def abort(self, reason: Exception) -> None:
        """Ends it; the first reason counts."""

    def is_of(self, key_id: str, tenant: str) -> bool:
        """Returns whether it is for a stored key or, with an empty one, for a tenant."""


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Limits of answers that wait for their readers.

    Attributes:
        wait_s: Seconds for a piece to be taken.
        total: Bytes of all answers.
        of_party: Bytes of the answers of one party.
    """

    wait_s: float
    total: int
    of_party: int


def answers_to_cut(answers: Sequence[Unread], limits: ReaderLimits) -> dict[int, RyzError]:
    """Chooses the answers that end now.

    Returns:
        The error for each of them, by its index in `answers`.
    """
    cut: dict[int, RyzError] = {
        index: _slow(answer, limits)
        for index, answer in enumerate(answers)
        if answer.late or answer.waited_s > limits.wait_s or (answer.waited_s and answer.behind > 0.5)
    }
    held: Counter[str] = Counter()
    for index, answer in enumerate(answers):
        if index not in cut:
            held[answer.party] += answer.num_bytes
    if held.total() <= min(limits.total, limits.of_party):
        return cut
    for index in sorted(range(len(answers)), key=lambda index: -answers[index].num_bytes):
        answer = answers[index]
        of_party = limits.of_party if answer.party else limits.total
        over = held.total() > limits.total or held[answer.party] > of_party
        if over and index not in cut and answer.num_bytes:
            cut[index] = Overloaded(
                "unread answers take more memory than RYZ_MAX_UNREAD_BYTES allows, and this one of "
                f"{answer.party!r} is among the largest, with {answer.num_bytes} bytes; read faster, or ask "
                "for less",
                reason="gateway_memory",
                retry_after_s=1.0,
            )
            held[answer.party] -= answer.num_bytes
    return cut


def _slow(answer: Unread, limits: ReaderLimits) -> RyzError:
    if answer.late and not answer.waited_s:
        return DeadlineExceeded("the answer did not end in the time that the caller gave its request")
    if answer.late:
        return DeadlineExceeded("the caller did not read the answer in the time it gave the request")
    return Cancelled(
        f"the answer was not read: {answer.num_bytes} bytes wait, the last piece for {answer.waited_s:.1f} s "
        f"(RYZ_WRITE_TIMEOUT_S: {limits.wait_s:g}); read faster, or come back to the stream",
        reason="slow_reader",
    )


async def watch_readers(
    running: Collection[OpenAnswer], limits: Callable[[], ReaderLimits], on_cut: Callable[[], None]
) -> None:
    """Cuts off answers of `running` that have to end, until it is cancelled; calls `on_cut` for each."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(WATCH_S)
        answers = [answer for answer in running if answer.reason is None]
        unread = [answer.unread(loop.time()) for answer in answers]
        for index, reason in answers_to_cut(unread, limits()).items():
            on_cut()
            answers[index].abort(reason)
