"""Asks leaders for profiles, measures their clocks meanwhile, and joins the parts of their answers."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cli.stack.state import StateDir
from cli.status.query import connect_broker
from shared import subjects
from shared.bus import Bus, Message
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.host.boot_id import boot_id
from shared.messages import GroupRecording, ProfileAnswer, ProfilePart, ProfileQuery
from shared.messages.profiles import MAX_RECORDING_BYTES
from shared.telemetry.clock_estimate import ClockEstimate, ClockOffset, RoundTrip

PINGS = 8
ANSWER_S = 0.4  # for the leaders' answers, whose number is not known
CHECK_S = 0.5  # between two checks whether the leaders live
_MISSED = 4  # of these in a row that a leader may miss
_SEND_S = 60.0  # for a recording to arrive once its time is over


@dataclass(slots=True)
class HeardLeader:
    """One leader, and its recording as far as it has come.

    Attributes:
        host_id: Hosts with the same id share a clock.
        clock: Its clock against ours.
        refused: Why it does not record.
        asked: Whether it was there when the recording was asked for; not a leader that began later.
        recording: Whether it records.
        count: Number of parts; 0: unknown.
        problem: Why there is no recording.
    """

    group: str
    host_id: str
    clock: ClockEstimate = field(default_factory=ClockEstimate)
    refused: str = ""
    asked: bool = False
    recording: bool = False
    parts: dict[int, bytes] = field(default_factory=dict)
    count: int = 0
    missed: int = 0
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether nothing more is to come."""
        return not self.recording or bool(self.problem) or (self.count > 0 and len(self.parts) == self.count)

    def offset(self) -> ClockOffset:
        """How far its clock is ahead of ours: not at all on this host."""
        found = self.clock.offset(time.monotonic_ns())
        if self.host_id == boot_id() or found is None:
            return ClockOffset(0, 0)
        return found

    def unpacked(self) -> GroupRecording:
        """Its recording. Raises `InvalidRequest` if it is none."""
        packed = b"".join(self.parts[number] for number in range(self.count))
        stream = zlib.decompressobj()
        try:
            data = stream.decompress(packed, MAX_RECORDING_BYTES)
        except zlib.error as error:
            raise InvalidRequest(f"the recording of group {self.group} is damaged: {error}") from error
        if stream.unconsumed_tail:
            raise InvalidRequest(f"the recording of group {self.group} is over {MAX_RECORDING_BYTES} bytes")
        return decode(data, GroupRecording)


class ProfileSession:
    """Asks the leaders of one broker.

    Attributes:
        leaders: Those that have answered, by their instance.
    """

    def __init__(self, bus: Bus, group: str | None) -> None:
        self.leaders: dict[str, HeardLeader] = {}
        self._bus = bus
        self._group = group
        self._inbox = bus.new_inbox()
        self._sent: dict[str, int] = {}
        self._count = 0
        self._arrived = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, url: str, state_dir: StateDir, group: str | None
    ) -> "AsyncIterator[ProfileSession]":
        """Connects. Raises `RyzError` without a broker."""
        bus = await connect_broker(url, state_dir, "ryz profile")
        try:
            session = cls(bus, group)
            await session.listen()
            yield session
        finally:
            await bus.close()

    async def listen(self) -> None:
        """Hears answers from now on."""
        await self._bus.subscribe(f"{self._inbox}.*", self._hear, max_pending=4096)

    async def find_leaders(self) -> None:
        """Asks for all clocks, several times."""
        await self._ask(0.0)
        await asyncio.sleep(ANSWER_S)
        for _ in range(PINGS if self.leaders else 0):
            await self._ask(0.0)
            await asyncio.sleep(0.02)

    async def record(self, seconds: float, op_spans: int) -> None:
        """Has the leaders record, and waits until all recordings are here or their leaders are gone."""
        began = time.monotonic()
        for one in self.leaders.values():
            one.asked = True
        await self._ask(seconds, op_spans)
        await asyncio.sleep(min(ANSWER_S, seconds))
        while not all(one.is_complete for one in self.leaders.values()):
            if time.monotonic() > began + seconds + _SEND_S:
                for one in self._waited():
                    one.problem = f"its recording did not arrive within {_SEND_S:g} s"
                return
            for one in self._waited():
                one.missed += 1
                if one.missed > _MISSED:
                    one.problem = "its leader ended, or was cut off, before the recording was sent"
            await self._ask(0.0)
            self._arrived.clear()
            try:
                async with asyncio.timeout(CHECK_S):
                    await self._arrived.wait()
            except TimeoutError:
                continue

    def _waited(self) -> list[HeardLeader]:
        return [one for one in self.leaders.values() if not one.is_complete]

    async def _ask(self, seconds: float, op_spans: int = 0) -> None:
        self._count += 1
        name = f"{'r' if seconds else 'c'}{self._count}"
        query = ProfileQuery(seconds=seconds, group=self._group, op_spans=op_spans)
        self._sent[name] = time.monotonic_ns()
        await self._bus.publish(subjects.PROFILE, encode(query), reply=f"{self._inbox}.{name}")

    async def _hear(self, message: Message) -> None:
        heard_ns = time.monotonic_ns()
        if message.no_responders:
            return
        name = message.subject.rpartition(".")[2]
        try:
            answer = decode(message.data, ProfileAnswer)
        except InvalidRequest:
            self._take_part(decode(message.data, ProfilePart))
            return
        leader = self.leaders.setdefault(answer.instance_id, HeardLeader(answer.group, answer.host_id))
        leader.missed = 0
        trip = RoundTrip(self._sent[name], answer.received_ns, answer.answered_ns, heard_ns)
        leader.clock.add(trip)
        if name.startswith("r"):
            leader.refused, leader.recording = answer.refused, not answer.refused

    def _take_part(self, part: ProfilePart) -> None:
        leader = self.leaders.get(part.instance_id)
        if leader is None:
            return
        leader.missed, leader.count = 0, part.count
        leader.parts[part.number] = part.data
        if leader.is_complete:
            self._arrived.set()
