"""A worker group in virtual time: steps of a mixed batch, a memory of sessions' KV, and its heartbeats.

It stands in for a group so that minutes of traffic are routed in seconds, by the router's own code. Rates are
those of the 110M model in int8 on two ranks (`results/`); a step takes what its prompts take plus what its
decodes take.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from shared.messages import Heartbeat, KVRates, Load, ModelCard

MODEL = "modelled"
BEAT_MS = 25


@dataclass(frozen=True, slots=True)
class Shape:
    """What a group can do. cache_tokens: its memory; token_budget: of one step."""

    prefill_tokens_per_s: float = 3600.0
    step_s: float = 0.0026
    decode_s: float = 0.00042  # for each sequence of a step
    fetch_tokens_per_s: float = 40_000.0
    fetch_s: float = 0.005
    store: bool = True
    cache_tokens: int = 200_000
    token_budget: int = 512
    max_running: int = 128
    max_waiting: int = 256

    def turn_s(self, prompt: int, answer: int, batch: int = 8) -> float:
        """Seconds of a group's time for one turn, in a batch of that many."""
        return prompt / self.prefill_tokens_per_s + answer * (self.decode_s + self.step_s / batch)


@dataclass(slots=True, eq=False)
class Turn:
    """A request. conversation: a session that began anew is another one; history: its tokens so far.

    arrived_s, first_s: when it came, and when its first token did.
    """

    session: int
    conversation: int
    history: int
    prompt: int
    answer: int
    arrived_s: float
    group: str = ""
    reason: str = ""
    cached: int = 0
    fetched: int = 0
    ready_s: float = 0.0
    remaining: int = 0  # of the prompt and what has to be computed again
    begun: bool = False
    left: int = 0  # of the answer
    first_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Of the session after it."""
        return self.history + self.prompt + self.answer


@dataclass(slots=True, eq=False)
class ModelGroup:
    """One group. busy_s, computed: seconds of steps and tokens in them, so far."""

    name: str
    shape: Shape
    busy_s: float = 0.0
    computed: int = 0
    stepping: bool = False
    cache: OrderedDict[int, int] = field(default_factory=OrderedDict)  # conversation -> tokens; oldest first
    _queue: list[Turn] = field(default_factory=list)  # fetching, waiting and running, in order of arrival
    _accepted: int = 0
    _beats: int = 0
    _rate: float = 0.0
    _reported: int = 0

    def take(self, turn: Turn, now: float) -> None:
        """A turn arrives: what is in memory is used, of the rest the cheaper of fetching and computing."""
        shape = self.shape
        turn.cached = min(turn.history, self.cache.get(turn.conversation, 0))
        missing = turn.history - turn.cached
        fetch_s = shape.fetch_s + missing / shape.fetch_tokens_per_s
        fetches = shape.store and missing > 0 and fetch_s < missing / shape.prefill_tokens_per_s
        turn.fetched = missing if fetches else 0
        turn.ready_s = now + fetch_s if fetches else now
        turn.remaining = turn.prompt + (0 if fetches else missing)
        turn.left = turn.answer
        self._accepted += 1
        self._queue.append(turn)

    def step(self, now: float) -> tuple[float, list[Turn]] | None:
        """Runs one step that starts `now`: its seconds, and the turns that are complete at its end."""
        ready = [turn for turn in self._queue if turn.ready_s <= now][: self.shape.max_running]
        if not ready:
            return None
        decoding = [turn for turn in ready if not turn.remaining]
        budget, through = self.shape.token_budget - len(decoding), []
        for turn in ready:
            if turn.remaining and budget > 0:
                self._begin(turn)
                chunk = min(budget, turn.remaining)
                budget, turn.remaining = budget - chunk, turn.remaining - chunk
                if not turn.remaining:
                    through.append(turn)
        prefilled = self.shape.token_budget - len(decoding) - budget
        seconds = prefilled / self.shape.prefill_tokens_per_s
        if decoding:
            seconds += self.shape.step_s + self.shape.decode_s * len(decoding)
        for turn in through:
            turn.first_s = now + seconds
            self._remember(turn, turn.history + turn.prompt)
        for turn in decoding + through:
            turn.left -= 1
        self.busy_s += seconds
        self.computed += prefilled + len(decoding)
        done = [turn for turn in decoding + through if turn.left <= 0]
        if done:
            self._queue = [turn for turn in self._queue if turn.left > 0]
            for turn in done:
                self._remember(turn, turn.tokens)
        return seconds, done

    def next_ready(self) -> float | None:
        """When the first fetch that is under way ends."""
        return min((turn.ready_s for turn in self._queue), default=None)

    def heartbeat(self) -> Heartbeat:
        """What a leader would say; its rate forgets with a half-life of two seconds, as a leader's does."""
        shape, kept = self.shape, 0.5 ** (BEAT_MS / 2000)
        self._rate = kept * self._rate + (1 - kept) * (self.computed - self._reported) / (BEAT_MS / 1000)
        self._reported = self.computed
        self._beats += 1
        running = min(len(self._queue), shape.max_running)
        load = Load(
            running=running,
            waiting=len(self._queue) - running,
            max_running=shape.max_running,
            max_waiting=shape.max_waiting,
            queued_tokens=sum(turn.remaining for turn in self._queue),
            tokens_per_s=self._rate,
        )
        rates = KVRates(
            recompute_tokens_per_s=shape.prefill_tokens_per_s,
            fetch_tokens_per_s=shape.fetch_tokens_per_s,
            fetch_s=shape.fetch_s,
            store=shape.store,
        )
        return Heartbeat(
            group=self.name,
            instance_id="modelled",
            seq=self._beats,
            interval_ms=BEAT_MS,
            state="ready",
            model=ModelCard(name=MODEL, context_length=1 << 20),
            load=load,
            accepted_total=self._accepted,
            kv=rates,
        )

    def _begin(self, turn: Turn) -> None:
        """What another turn of the session has computed since this one came is found in memory."""
        if turn.begun or turn.fetched:
            return
        turn.begun = True
        cached = min(turn.history, self.cache.get(turn.conversation, 0))
        if cached > turn.cached:
            turn.remaining -= cached - turn.cached
            turn.cached = cached

    def _remember(self, turn: Turn, tokens: int) -> None:
        self.cache[turn.conversation] = max(tokens, self.cache.get(turn.conversation, 0))
        self.cache.move_to_end(turn.conversation)
        while sum(self.cache.values()) > self.shape.cache_tokens:
            self.cache.popitem(last=False)
