"""Runs sequences on a guest and collects what it brings."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from services.worker.guests.port import Guest, GuestFacts, GuestPart, GuestSequence
from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import NewSequence, Sampled

_numbers = count(1)


@dataclass(slots=True)
class Brought:
    """All that came of one sequence."""

    sampled: list[Sampled] = field(default_factory=list)
    finished: str = ""
    error: str = ""
    num_ends: int = 0

    @property
    def token_ids(self) -> list[int]:
        """The tokens in order."""
        return [one.token_id for one in self.sampled]


class GuestRun:
    """Watches a guest."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.facts: GuestFacts | None = None  # set by those who start it
        self.brought: dict[int, Brought] = {}
        self.failures: list[str] = []
        self._changed = asyncio.Event()
        guest.watch(self._take, self._fail)

    def open(self, sequence: GuestSequence) -> int:
        """Opens a sequence."""
        seq_id = sequence.new.seq_id
        self.brought[seq_id] = Brought()
        self.guest.open(sequence)
        return seq_id

    async def end_of(self, seq_id: int) -> Brought:
        """Waits for the last part of a sequence."""
        brought = self.brought[seq_id]
        await self.until(lambda: brought.num_ends > 0)
        return brought

    async def run(self, sequence: GuestSequence) -> Brought:
        """Runs a sequence to its end."""
        return await self.end_of(self.open(sequence))

    async def failure(self) -> str:
        """Waits until the guest is gone."""
        await self.until(lambda: bool(self.failures))
        return self.failures[0]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds after a part, or a failure."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _take(self, part: GuestPart) -> None:
        brought = self.brought[part.seq_id]
        brought.sampled += part.sampled
        brought.finished = part.finished or brought.finished
        brought.error = part.error or brought.error
        brought.num_ends += bool(part.finished) + bool(part.error)
        self._changed.set()

    def _fail(self, why: str) -> None:
        self.failures.append(why)
        self._changed.set()


def guest_sequence(
    prompt: list[int],
    *,
    max_tokens: int = 24,
    generated: list[int] | None = None,
    sampling: EngineSampling | None = None,
    eos_ids: list[int] | None = None,
    adapter: str = "",
    choice: int = 0,
    form: DemandedForm | None = None,
) -> GuestSequence:
    """Makes a sequence with a number of its own; greedy if nothing else is asked for."""
    new = NewSequence(
        seq_id=next(_numbers),
        token_ids=[*prompt, *(generated or [])],
        prompt_len=len(prompt),
        sampling=sampling or EngineSampling(temperature=0.0),
        eos_ids=eos_ids or [],
        choice=choice,
        form=form,
    )
    return GuestSequence(new=new, max_tokens=max_tokens, adapter=adapter)
