"""Runs a scheduler with adapters in virtual time, beside ranks that check what they are told.

The ranks know which adapter is in which slot, and fail the test when a sequence runs with another one than
its own, or when a slot changes under a sequence.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from services.worker.domain.adapters.pool import AdapterPool
from services.worker.domain.adapters.sequence_adapter import SequenceAdapter
from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames, PrefixSharing
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.adapters import NO_ADAPTER
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import Sampled, StepPlan, StepResult
from tests.kits.worker.options import scheduler_limits

STEP_S, ROW_S, PROMPT_TOKEN_S = 0.006, 0.0008, 0.0007  # of a small model on a few cores
IDLE_S = 0.005


def adapter(number: int, num_bytes: int = 1) -> SequenceAdapter:
    return SequenceAdapter(f"{number:032x}", f"/adapters/{number}", num_bytes)


@dataclass
class Ranks:
    """What ranks know of adapters: slots that are loaded, and sequences that run with them.

    Attributes:
        own: The adapter that each request is to run with; empty: none.
    """

    own: dict[str, str]
    slots: dict[int, str] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)  # seq_id to slot

    def begin_step(self, plan: StepPlan, scheduler: Scheduler) -> None:
        for seq_id in plan.release:
            del self.running[seq_id]
        names = {one.seq_id: one.request_id for one in scheduler.running}
        for new in plan.admit:
            wanted = self.own[names[new.seq_id]]
            found = self.slots[new.adapter] if new.adapter != NO_ADAPTER else ""
            assert found == wanted, f"{names[new.seq_id]} is to run with {wanted}, and gets {found}"
            self.running[new.seq_id] = new.adapter

    def empty_slot(self, slot: int) -> None:
        assert slot not in self.running.values(), f"slot {slot} changes under a sequence"
        self.slots.pop(slot, None)


@dataclass
class Simulation:
    """A group of one engine; `run` goes on until nothing is left to do.

    Attributes:
        load_s: Seconds of a load; loads come one after another.
        errors: Why an adapter cannot be loaded, by fingerprint.
        first_token_s: Seconds from arrival to the first token, by request.
        itl_s: The longest time between two tokens, by request.
        on_end: Called with each request that has ended.
    """

    scheduler: Scheduler
    load_s: float = 0.03
    run_ahead: int = 0
    now: float = 0.0
    errors: dict[str, str] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    arrived: dict[str, float] = field(default_factory=dict)
    first_token_s: dict[str, float] = field(default_factory=dict)
    last_token_at: dict[str, float] = field(default_factory=dict)
    itl_s: dict[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    num_loads: int = 0
    num_steps: int = 0
    check_every: int = 1
    on_end: Callable[[str], None] = lambda _: None
    _coming: list[tuple[float, int, Sequence]] = field(default_factory=list)
    _loads: deque[tuple[float, int, str]] = field(default_factory=deque)
    _loading_until: float = 0.0
    _flying: deque[tuple[StepPlan, float]] = field(default_factory=deque)
    _computing_until: float = 0.0
    _arrivals: int = 0

    def __post_init__(self) -> None:
        self.ranks = Ranks({})

    @classmethod
    def of(
        cls,
        most_bytes: int,
        *,
        blocks: int = 2048,
        running: int = 64,
        sharing: PrefixSharing = "tenant",
        **fields: Any,
    ) -> "Simulation":
        made: list[Simulation] = []
        names = BlockNames("f", sharing=sharing)
        scheduler = Scheduler(
            BlockManager(blocks),
            scheduler_limits(256, running, 1000),
            names,
            clock=lambda: made[0].now,
            adapters=AdapterPool(most_bytes),
        )
        made.append(cls(scheduler, **fields))
        return made[0]

    @property
    def pool(self) -> AdapterPool:
        return self.scheduler.queues.adapters.pool

    def add(
        self,
        name: str,
        wanted: SequenceAdapter | None,
        *,
        at: float | None = None,
        prompt: int = 64,
        output: int = 32,
        party: str = "t",
        priority: int = 0,
    ) -> None:
        """Lets a request come, at that time or now."""
        self._arrivals += 1
        number = self._arrivals
        tokens = [(number * 7919 + index) % 50_000 + 10 for index in range(prompt)]
        sequence = Sequence(
            request_id=name,
            choice=0,
            tokens=tokens,
            prompt_len=prompt,
            max_tokens=output,
            sampling=EngineSampling(),
            tenant=party,
            priority=priority,
            adapter=wanted,
        )
        self.ranks.own[name] = wanted.fingerprint if wanted is not None else ""
        self._coming.append((self.now if at is None else at, number, sequence))
        self._coming.sort(key=lambda entry: entry[:2])

    def run(self, until: Callable[[], bool] = lambda: False, most_s: float = 10_000.0) -> None:
        """Runs until all requests have ended, or the condition holds."""
        while (self._coming or self.scheduler.has_work or self._flying) and not until():
            assert self.now < most_s, f"requests do not end: {self.arrived.keys() - self.ends.keys()}"
            self._arrive()
            while len(self._flying) <= self.run_ahead and self._submit():
                pass
            self._advance()
            if self.num_steps % self.check_every == 0:
                self.scheduler.check_invariants()

    def _arrive(self) -> None:
        while self._coming and self._coming[0][0] <= self.now:
            at, number, sequence = self._coming.pop(0)
            sequence.enqueued_as(number)
            self.arrived[sequence.request_id] = at
            self.scheduler.add(sequence)

    def _submit(self) -> bool:
        plan = self.scheduler.plan()
        for sequence, reason in self.scheduler.adapters.take_refused():
            self._end(sequence, reason)
        if not plan.is_empty:
            self.ranks.begin_step(plan, self.scheduler)
            decodes = sum(piece.num_tokens == 1 for piece in plan.chunks)
            prompts = sum(piece.num_tokens for piece in plan.chunks) - decodes
            took_s = (STEP_S + ROW_S * decodes + PROMPT_TOKEN_S * prompts) if plan.chunks else 0.0
            self._computing_until = max(self._computing_until, self.now) + took_s
            self.num_steps += 1
            self._flying.append((plan, self._computing_until))
        if self.scheduler.adapters.has_orders and self.scheduler.order_step >= 0:
            for order in self.scheduler.adapters.take_orders():
                self.ranks.empty_slot(order.slot)
                if order.adapter is not None:
                    self.num_loads += 1
                    self._loading_until = max(self._loading_until, self.now) + self.load_s
                    self._loads.append((self._loading_until, order.slot, order.adapter.fingerprint))
        return not plan.is_empty

    def _advance(self) -> None:
        """Goes on to the next end of a step or of a load, or to the next request."""
        times = [entry[0] for entry in self._loads] + [entry[0] for entry in self._coming[:1]]
        times += [end for _, end in list(self._flying)[:1]]
        self.now = max(self.now, min([*times, self.now + IDLE_S]))
        while self._loads and self._loads[0][0] <= self.now:
            _, slot, name = self._loads.popleft()
            error = self.errors.get(name, "")
            if not error:
                self.ranks.slots[slot] = name
            self.scheduler.adapters.end_load(name, error, self.now, self.load_s)
        if self._flying and self._flying[0][1] <= self.now:
            self._book(self._flying.popleft()[0])

    def _book(self, plan: StepPlan) -> None:
        sampled = [Sampled(seq_id=piece.seq_id, token_id=1) for piece in plan.chunks if piece.sample]
        self.num_tokens += len(sampled)
        for advance in self.scheduler.apply(StepResult(step_id=plan.step_id, sampled=sampled)):
            name = advance.sequence.request_id
            if name not in self.first_token_s:
                self.first_token_s[name] = self.now - self.arrived[name]
            else:
                gap = self.now - self.last_token_at[name]
                self.itl_s[name] = max(self.itl_s.get(name, 0.0), gap)
            self.last_token_at[name] = self.now
            if advance.finish_reason:
                self._end(advance.sequence, advance.finish_reason)

    def _end(self, sequence: Sequence, why: str) -> None:
        self.scheduler.end(sequence)
        self.ends[sequence.request_id] = why
        self.on_end(sequence.request_id)


def closed_loop(
    most_bytes: int, num_clients: int, *, each: int = 12, think_s: float = 0.0, **fields: Any
) -> Simulation:
    """Clients with an adapter each, which send one request after the end of another.

    Args:
        most_bytes: Slots, since an adapter has one byte.
        num_clients: Their number.
        each: Requests of a client.
        think_s: Mean time between two of them.
        **fields: Of `Simulation.of`.
    """
    simulation, chance = Simulation.of(most_bytes, **fields), random.Random(1)
    left = dict.fromkeys(range(num_clients), each)

    def send(client: int) -> None:
        if left[client]:
            left[client] -= 1
            at = simulation.now + (chance.expovariate(1 / think_s) if think_s else 0.0)
            prompt, output = chance.randint(32, 96), chance.randint(32, 96)
            simulation.add(f"{client}/{left[client]}", adapter(client), at=at, prompt=prompt, output=output)

    simulation.on_end = lambda name: send(int(name.partition("/")[0]))
    for client in range(num_clients):
        send(client)
    return simulation
