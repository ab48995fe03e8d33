"""A group, a follower and a network between them that loses, repeats, reorders and delays; no time passes."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from services.worker.domain.blocks.changes import BlockChanges
from services.worker.domain.kv_events.contents import KVNaming
from services.worker.leader.context import LeaderContext
from services.worker.leader.kv_events.publisher import LEASE_S, KVEventPublisher
from services.worker.metrics import WorkerMetrics
from shared import codec
from shared.client.kv_events.group_view import WantedCall
from shared.client.kv_events.index import KVEventIndex
from shared.errors import Unavailable
from shared.kv_hash import NAME_BYTES
from shared.messages import KVEvents, KVFollow, KVReplay, KVReplayed, KVSnapshotPage

GROUP = "g0"


class SetContents:
    """A KV cache that is only its names."""

    def __init__(self) -> None:
        self.blocks: set[bytes] = set()
        self._changes: BlockChanges | None = None
        self._watchers: list[Callable[[], None]] = []

    def naming(self) -> KVNaming:
        return KVNaming("f00d", "fp32", "tenant", 16)

    def names(self) -> list[bytes]:
        return list(self.blocks)

    def num_names(self) -> int:
        return len(self.blocks)

    def record(self, changes: BlockChanges | None) -> None:
        self._changes = changes

    def watch_resets(self, on_reset: Callable[[], None]) -> None:
        self._watchers.append(on_reset)

    def store(self, name: bytes) -> None:
        if name not in self.blocks:
            self.blocks.add(name)
            if self._changes is not None:
                self._changes.note_stored(name)

    def remove(self, name: bytes) -> None:
        if name in self.blocks:
            self.blocks.remove(name)
            if self._changes is not None:
                self._changes.note_removed(name)

    def reset(self) -> None:
        self.blocks, self._changes = set(), None
        for watcher in self._watchers:
            watcher()


class EventBus:
    """What a publisher needs of a bus; `sent` has what was published."""

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.max_payload = max_payload
        self.sent: list[KVEvents] = []
        self.away = False

    def publish_now(self, subject: str, data: bytes, **_: Any) -> bool:
        if self.away:
            raise Unavailable("the broker is away")
        assert subject == f"ryz.v1.kv.events.{GROUP}"
        assert len(data) <= self.max_payload
        self.sent.append(codec.decode(data, KVEvents))
        return True


def context(
    bus: EventBus, metrics: WorkerMetrics, instance_id: str, clock: Callable[[], float]
) -> LeaderContext:
    """The context of a leader of which there is nothing but its publisher."""
    given: Any = bus
    return LeaderContext(GROUP, instance_id, "demo", given, metrics, clock)


def block(number: int) -> bytes:
    """The name of a block."""
    return number.to_bytes(NAME_BYTES, "little")


class World:
    """Everything; each method is one thing that may happen. `settle` lets all be delivered.

    Args:
        chance: Decides what happens to what is under way.
    """

    def __init__(self, chance: random.Random, metrics: WorkerMetrics) -> None:
        self.chance = chance
        self.index = KVEventIndex()
        self._metrics = metrics
        self._instances = 0
        self._now = 1000.0
        self._flight: list[KVEvents] = []
        self._questions: list[Callable[[], None]] = []
        self._answers: list[Callable[[], None]] = []
        self._start_leader()

    def change(self) -> None:
        """Blocks come and go."""
        for _ in range(self.chance.randint(1, 8)):
            name = block(self.chance.randrange(400))
            if self.chance.random() < 0.6:
                self.contents.store(name)
            else:
                self.contents.remove(name)

    def fill(self) -> None:
        """More blocks come than one message may name."""
        first = self.chance.randrange(1000)
        for number in range(first, first + 150):
            self.contents.store(block(number))

    def send(self) -> None:
        """The leader publishes what was gathered."""
        self.publisher.flush()
        self._flight += self.bus.sent
        self.bus.sent.clear()

    def restart_engine(self) -> None:
        """The engine dies; the leader lives on."""
        self.contents.reset()
        self.send()

    def restart_leader(self) -> None:
        """The leader is killed: what it had not published is lost, and so are questions on their way."""
        self._questions.clear()
        self._start_leader()
        if self.chance.random() < 0.5:
            self.contents.reset()  # as at the start of an engine
        self.send()

    def pass_time(self) -> None:
        """A while in which a lease may end."""
        self._now += self.chance.choice((0.5, 2.0, LEASE_S / 2, LEASE_S + 1))
        self.publisher.keep_house()

    def deliver(self) -> None:
        """An event arrives, or is lost; it may arrive again."""
        if self._flight:
            events = self._flight.pop(self.chance.randrange(len(self._flight)))
            fate = self.chance.random()
            if fate > 0.2:
                self.index.take_events(events)
            if fate > 0.9:
                self._flight.append(events)

    def ask(self) -> None:
        """The follower asks for what it lacks."""
        for wanted in self.index.wanted():
            self._questions.append(partial(self._answer, wanted))

    def follow(self) -> None:
        """The follower asks for the group's state."""
        before = self.index.changes()

        def answer() -> None:
            followed = self.publisher.follow(KVFollow())
            self._answers.append(lambda: self.index.take_followed(followed, before))

        self._questions.append(answer)

    def serve(self) -> None:
        """The leader gets a question, or it is lost."""
        if self._questions:
            question = self._questions.pop(self.chance.randrange(len(self._questions)))
            if self.chance.random() > 0.2:
                question()
                self.send()

    def reply(self) -> None:
        """An answer arrives, or is lost."""
        if self._answers:
            answer = self._answers.pop(self.chance.randrange(len(self._answers)))
            if self.chance.random() > 0.2:
                answer()

    def settle(self) -> int:
        """Delivers everything, late things last; returns how many rounds of calls the follower needed."""
        self.send()
        events = [partial(self.index.take_events, one) for one in self._flight]
        late: list[Callable[[], None]] = [*events, *self._answers, *self._questions]
        self.chance.shuffle(late)
        for arrive in late:
            arrive()
        self._flight, self._questions, self._answers = [], [], []
        for rounds in range(1, 200):
            self.follow()
            self.ask()
            for question in self._questions:
                question()
            self.send()
            for answer in self._answers:
                answer()
            for one in self._flight:
                self.index.take_events(one)
            self._flight, self._questions, self._answers = [], [], []
            if next(self.index.wanted(), None) is None:
                return rounds
        raise AssertionError("the follower goes on asking")

    def _start_leader(self) -> None:
        self._instances += 1
        self.bus, self.contents = EventBus(2048), SetContents()  # 64 names in a message
        made = context(self.bus, self._metrics, f"i{self._instances}", lambda: self._now)
        self.publisher = KVEventPublisher(made, self.contents)

    def _answer(self, wanted: WantedCall) -> None:
        reply: KVReplayed | KVSnapshotPage
        if isinstance(wanted.call, KVReplay):
            reply = self.publisher.replay(wanted.call)
        else:
            reply = self.publisher.snapshot(wanted.call)
        self._answers.append(lambda: self.index.take_answer(wanted, reply))


ACTIONS = (
    "change", "change", "change", "fill", "send", "send", "send", "deliver", "deliver", "deliver", "deliver",
    "ask", "ask", "serve", "serve", "serve", "reply", "reply", "reply", "follow", "restart_engine",
    "restart_leader", "pass_time",
)  # fmt: skip
