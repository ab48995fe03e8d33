"""Runs one turn of a session at a time: a later one waits until the one before it has ended.

It waits before its session's record is looked up, so that it sees the turn before it. Another group may run a
turn of the same session all the same (overflow, failover); `session_merge.py` joins their records.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from services.worker.domain.generation.generation import Generation
from shared.errors import Conflict, Overloaded
from shared.messages import GenerateRequest

Key = tuple[str, str]  # tenant, session id


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Constants; times in seconds.

    Attributes:
        max_waiting: Turns of one session that may wait for the one that runs; more are refused. Clients send
            the next turn when they have the answer, so more than a few are a mistake.
        wait_s: For which a turn waits for another.
        yield_s: For which, after the loss of a group, a turn without an answer waits for turns of its session
            whose answers had begun there.
    """

    max_waiting: int = 16
    wait_s: float = 120.0
    yield_s: float = 0.05


@dataclass(slots=True)
class _Line:
    owner: Generation
    waiting: deque[tuple[Generation, asyncio.Future[None]]] = field(default_factory=deque)


class TurnLines:
    """The turns of all sessions; a turn is identified by its generation."""

    def __init__(self, limits: TurnLimits) -> None:
        self._limits = limits
        self._lines: dict[Key, _Line] = {}

    @property
    def num_lines(self) -> int:
        """Sessions that have a turn."""
        return len(self._lines)

    @property
    def num_waiting(self) -> int:
        """Turns that wait for another one."""
        return sum(len(line.waiting) for line in self._lines.values())

    @property
    def wait_s(self) -> float:
        """See `TurnLimits.wait_s`."""
        return self._limits.wait_s

    def running(self, tenant: str, session_id: str) -> GenerateRequest | None:
        """Returns the request of the session's turn that has its history and runs; None: none does."""
        line = self._lines.get((tenant, session_id))
        return line.owner.request if line is not None and line.owner.turn is not None else None

    def enter_now(self, generation: Generation) -> bool:
        """Enters if no turn of the session runs, as for a new session; returns whether it did."""
        key = _key_of(generation)
        return key is None or self._lines.setdefault(key, _Line(generation)).owner is generation

    def yield_s(self, generation: Generation) -> float:
        """Returns for how many seconds a turn that comes from a lost group waits behind others."""
        return self._limits.yield_s if generation.request.attempt and not _has_begun(generation) else 0.0

    async def enter_line(self, generation: Generation) -> None:
        """Waits for the turns before this one.

        Raises:
            Overloaded: Too many turns wait already, or this one has waited too long.
            Conflict: Another turn runs, and the caller wants the session as it is.
        """
        request, limits = generation.request, self._limits
        begun = _has_begun(generation)
        if pause_s := self.yield_s(generation):
            await asyncio.sleep(pause_s)
        if self.enter_now(generation):
            return
        key = _key_of(generation)
        assert key is not None
        assert request.session is not None
        line, name = self._lines[key], request.session.session_id
        if request.session.if_version >= 0 and not begun:
            raise Conflict(
                f"session {name} has a turn that runs now, so it will not stay at version "
                f"{request.session.if_version}; read the session and send the turn again",
                reason="session_busy",
            )
        if len(line.waiting) >= limits.max_waiting:
            raise Overloaded(
                f"{len(line.waiting)} turns of session {name} wait already; send a turn when the one before "
                "it has ended",
                reason="session_turns",
                retry_after_s=1.0,
            )
        await self._wait(line, generation, begun=begun)

    def leave_line(self, generation: Generation) -> None:
        """Lets the next turn in after one that ended; does nothing for requests that are not in a line."""
        key = _key_of(generation)
        line = self._lines.get(key) if key is not None else None
        if line is None or line.owner is not generation:
            return
        while line.waiting:
            line.owner, future = line.waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        assert key is not None
        del self._lines[key]

    async def _wait(self, line: _Line, generation: Generation, *, begun: bool) -> None:
        entry = (generation, asyncio.get_running_loop().create_future())
        if begun:  # its caller has the beginning of the answer
            line.waiting.appendleft(entry)
        else:
            line.waiting.append(entry)
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await entry[1]
        except TimeoutError:
            raise Overloaded(
                f"the turn waited {self._limits.wait_s:g} s for another one of its session, which still runs",
                reason="session_turns",
                retry_after_s=1.0,
            ) from None
        finally:
            if entry in line.waiting:
                line.waiting.remove(entry)


def _has_begun(generation: Generation) -> bool:
    resume = generation.request.resume
    return resume is not None and any(resume.token_ids)


def _key_of(generation: Generation) -> Key | None:
    request = generation.request
    if request.session is None or request.messages is None:
        return None
    return request.tenant, request.session.session_id
