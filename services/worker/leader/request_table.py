"""The requests in hand: the one place where they begin, end, fail and are cancelled.

Keeps requests, scheduler and outbox in step, so that an accepted request gets exactly one last frame and
leaves no block, queue place or task behind.
"""

import asyncio
from collections.abc import Callable

from services.worker.domain.generation.request import Generation, request_key
from services.worker.domain.generation.request_counts import RequestCounts
from services.worker.domain.generation.retransmit_buffer import RetransmitBuffer
from services.worker.domain.generation.tenant_entries import TenantEntries
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.leader.frame_publisher import FramePublisher
from services.worker.metrics import WorkerMetrics
from shared.errors import Cancelled, RyzError
from shared.messages import GenerateRequest, Load
from shared.messages.base import MAX_ATTEMPT

MAX_TOMBSTONES = 10_000  # of all tenants; beyond it the oldest of the one that has most is forgotten


class RequestTable:
    """Everything that was accepted and has not ended.

    tombstone_s: how long a cancel of an unknown request holds, for when it overtakes the request.
    """

    def __init__(
        self,
        outbox: RetransmitBuffer,
        publisher: FramePublisher,
        metrics: WorkerMetrics,
        clock: Callable[[], float],
        tombstone_s: float = 5.0,
    ) -> None:
        self.outbox = outbox
        self.publisher = publisher
        self.clock = clock
        self.by_id: dict[str, Generation] = {}  # under `request_key`
        self.endings = RequestCounts()
        self.scheduler: Scheduler | None = None  # None while there is no engine
        self.on_all_tokens: Callable[[Generation], None] = self.complete  # sees to the end of a generation
        self.on_end: Callable[[Generation], None] = lambda generation: None
        self.work = asyncio.Event()  # set when the engine loop has something to do
        self._metrics = metrics
        self._tombstone_s = tombstone_s
        self._tombstones = TenantEntries[tuple[float, int]](MAX_TOMBSTONES)  # until when, which attempt
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._places_held = 0  # sequences of requests that are not with the scheduler yet
        self._arrivals = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def num_free(self, *, resumed: bool = False) -> int:
        """How many sequences may come in now, below 0 if too many did.

        resumed: of a request that was admitted before; there may be more of those, as many as may run.
        """
        if self.scheduler is None:
            return 0
        more = self.scheduler.limits.max_running if resumed else 0
        return self.scheduler.num_free - self._places_held + more

    def open(self, generation: Generation) -> None:
        """Takes a request; its places are held until `start` or its end."""
        request = generation.request
        self.by_id[generation.key] = generation
        self._places_held += request.sampling.n
        self.outbox.open(generation.key, request.attempt, generation.next_seq, request)
        self._empty.clear()

    def prepare_in_background(self, generation: Generation, task: asyncio.Task[None]) -> None:
        """Remembers the task that prepares a request, to be cancelled with it."""
        key = generation.key
        self._preparing[key] = task

        def forget(done: asyncio.Task[None]) -> None:
            if self._preparing.get(key) is done:
                del self._preparing[key]

        task.add_done_callback(forget)

    def start(self, generation: Generation) -> None:
        """Hands the sequences of a prepared request to the scheduler; those that ended before stay out."""
        assert self.scheduler is not None
        self._places_held -= generation.request.sampling.n
        generation.started = True
        for choice in generation.choices:
            if choice.finish_reason is None:
                generation.open_choices += 1
                self._arrivals += 1
                choice.sequence.enqueued_as(self._arrivals, first=generation.resumed)
                self.scheduler.add(choice.sequence)
        self._metrics.prompt_tokens.inc(generation.prompt_tokens)
        self.work.set()
        if generation.open_choices == 0:
            self.on_all_tokens(generation)

    def complete(self, generation: Generation) -> None:
        """Sends `Done`; the request ran its course."""
        self._metrics.requests.labels("done").inc()
        self.endings.count()
        self.publisher.send(generation, generation.done())
        self._remove(generation)

    def fail(self, generation: Generation, error: RyzError) -> None:
        """Sends what there is and `Failed`, and frees everything the request has, wherever it is.

        One that has all its tokens, and only waits for its session's record to be stored, is complete: a
        caller that was told of a failure would send the turn a second time.
        """
        if generation.ended:
            return
        if generation.has_all_tokens:
            self.complete(generation)
            return
        self._metrics.requests.labels(error.code).inc()
        self.endings.count(error)
        frame = generation.tokens()
        if frame is not None:
            self.publisher.send(generation, frame)
        self.publisher.send(generation, generation.failed(error))
        self._remove(generation)

    def fail_all(self, error: RyzError) -> None:
        """Fails every request in hand. With `GroupLost` they are resumed elsewhere, if their callers can."""
        for generation in list(self.by_id.values()):
            self.fail(generation, error)

    def supersede(self, key: str) -> None:
        """Drops an older attempt without a word; nobody listens to its frames any more."""
        generation = self.by_id.get(key)
        if generation is not None:
            self._metrics.requests.labels("superseded").inc()
            generation.ended = True
            self.outbox.abandon(key, self.clock())
            self._remove(generation)

    def keys_of(self, tenant: str, request_id: str) -> list[str]:
        """The keys of the requests that are meant; without a tenant all that are known of that id."""
        return [request_key(tenant, request_id)] if tenant else self.outbox.keys(request_id)

    def cancel(self, request_id: str, reason: str, attempt: int = MAX_ATTEMPT, *, tenant: str = "") -> None:
        """Ends a request at its caller's wish, up to that attempt: a later one is not the canceller's, or is
        what the canceller wants instead. An unknown one is remembered in case it comes later.
        """
        for key in self.keys_of(tenant, request_id) or [request_key("", request_id)]:
            generation, known = self.by_id.get(key), self.outbox.attempt(key)
            if generation is not None and generation.request.attempt <= attempt:
                if generation.request.call_key and generation.has_all_tokens:
                    continue  # whoever repeats the call is to be told what became of its turn
                self.fail(generation, Cancelled(f"the request was cancelled: {reason or 'no reason given'}"))
            elif generation is None and (known is None or known < attempt < MAX_ATTEMPT):
                whose = key.partition("/")[0]
                self._tombstones.put(whose, request_id, (self.clock() + self._tombstone_s, attempt))

    def was_cancelled(self, request: GenerateRequest) -> bool:
        """Whether a cancel came before the request; it counts once."""
        if not self._tombstones:
            return False
        name, attempt = request.request_id, request.attempt
        return self._take_tombstone(request.tenant, name, attempt) or self._take_tombstone("", name, attempt)

    def _take_tombstone(self, tenant: str, request_id: str, attempt: int) -> bool:
        found = self._tombstones.get(tenant, request_id)
        if found is None or attempt > found[1]:
            return False
        self._tombstones.pop(tenant, request_id)
        return found[0] > self.clock()

    def expire(self) -> None:
        """Forgets tombstones and retained frames that are too old."""
        now = self.clock()
        self.outbox.expire(now)
        if self._tombstones:
            self._tombstones.drop_oldest(lambda tombstone: tombstone[0] <= now)

    async def wait_empty(self, timeout_s: float) -> bool:
        """Whether all requests ended within that time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def load(self) -> Load:
        """How busy the group is; a request with n choices counts n times."""
        scheduler = self.scheduler
        if scheduler is None:
            return Load(waiting=self._places_held)
        return Load(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + self._places_held,
            max_running=scheduler.limits.max_running,
            max_waiting=scheduler.limits.max_waiting,
            free_blocks=scheduler.blocks.num_free,
            total_blocks=scheduler.blocks.num_blocks,
            queued_tokens=scheduler.queued_tokens,
        )

    def _remove(self, generation: Generation) -> None:
        if self.by_id.pop(generation.key, None) is None:
            return
        if not generation.started:
            self._places_held -= generation.request.sampling.n
        task = self._preparing.pop(generation.key, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if self.scheduler is not None:
            for choice in generation.choices:
                self.scheduler.end(choice.sequence)
        self.on_end(generation)
        if not self.by_id:
            self._empty.set()
        self.work.set()
