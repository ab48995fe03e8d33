"""Models a worker group in virtual time: steps of a mixed batch, a memory of sessions' KV, its heartbeats.

Minutes of traffic are routed to it in seconds, by the router's own code. Rates are those of the 110M model in
int8 on two ranks (`results/`); the time of a step is that of its prompts plus that of its decodes.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from shared.messages import Heartbeat, KVRates, Load, ModelCard

MODEL = "modelled"
BEAT_MS = 25


@dataclass(frozen=True, slots=True)
class GroupRates:
    """Rates and limits of a group; `cache_tokens` is its memory, `token_budget` the bound of one step."""

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
        """Return the seconds of a group's time for one turn, in a batch of that size."""
        return prompt / self.prefill_tokens_per_s + answer * (self.decode_s + self.step_s / batch)


@dataclass(slots=True, eq=False)
class ModelledTurn:
    """A request.

    Attributes:
        conversation: Number of the session's conversation; a session that begins anew has another.
        history: Tokens of the conversation so far.
        ready_s: When its fetch ends.
        remaining: Tokens still to compute of the prompt, and of the history that was not found.
        left: Tokens still to generate.
        first_s: When its first token came.
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
    remaining: int = 0
    begun: bool = False
    left: int = 0
    first_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of the conversation after this turn."""
        return self.history + self.prompt + self.answer


@dataclass(slots=True, eq=False)
class ModelledGroup:
    """One group; `busy_s` and `computed` are the seconds of its steps and the tokens in them so far."""

    name: str
    rates: GroupRates
    busy_s: float = 0.0
    computed: int = 0
    stepping: bool = False
    cache: OrderedDict[int, int] = field(default_factory=OrderedDict)  # conversation -> tokens; oldest first
    _queue: list[ModelledTurn] = field(default_factory=list)  # in order of arrival
    _accepted: int = 0
    _beats: int = 0
    _rate: float = 0.0
    _reported: int = 0

    def take_turn(self, turn: ModelledTurn, now: float) -> None:
        """Queue a turn: KV in memory is used, the rest is fetched or computed, whichever is cheaper."""
        can = self.rates
        turn.cached = min(turn.history, self.cache.get(turn.conversation, 0))
        missing = turn.history - turn.cached
        fetch_s = can.fetch_s + missing / can.fetch_tokens_per_s
        fetches = can.store and missing > 0 and fetch_s < missing / can.prefill_tokens_per_s
        turn.fetched = missing if fetches else 0
        turn.ready_s = now + fetch_s if fetches else now
        turn.remaining = turn.prompt + (0 if fetches else missing)
        turn.left = turn.answer
        self._accepted += 1
        self._queue.append(turn)

    def run_step(self, now: float) -> tuple[float, list[ModelledTurn]] | None:
        """Run one step that starts `now`; return its seconds and the turns that are complete at its end."""
        ready = [turn for turn in self._queue if turn.ready_s <= now][: self.rates.max_running]
        if not ready:
            return None
        decoding = [turn for turn in ready if not turn.remaining]
        budget, through = self.rates.token_budget - len(decoding), []
        for turn in ready:
            if turn.remaining and budget > 0:
                self._begin(turn)
                chunk = min(budget, turn.remaining)
                budget, turn.remaining = budget - chunk, turn.remaining - chunk
                if not turn.remaining:
                    through.append(turn)
        prefilled = self.rates.token_budget - len(decoding) - budget
        seconds = prefilled / self.rates.prefill_tokens_per_s
        if decoding:
            seconds += self.rates.step_s + self.rates.decode_s * len(decoding)
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

    def heartbeat(self) -> Heartbeat:
        """Return a leader's heartbeat; its rate has a half-life of two seconds, as a leader's has."""
        can, kept = self.rates, 0.5 ** (BEAT_MS / 2000)
        self._rate = kept * self._rate + (1 - kept) * (self.computed - self._reported) / (BEAT_MS / 1000)
        self._reported = self.computed
        self._beats += 1
        running = min(len(self._queue), can.max_running)
        load = Load(
            running=running,
            waiting=len(self._queue) - running,
            max_running=can.max_running,
            max_waiting=can.max_waiting,
            queued_tokens=sum(turn.remaining for turn in self._queue),
            tokens_per_s=self._rate,
        )
        rates = KVRates(
            recompute_tokens_per_s=can.prefill_tokens_per_s,
            fetch_tokens_per_s=can.fetch_tokens_per_s,
            fetch_s=can.fetch_s,
            store=can.store,
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

    def _begin(self, turn: ModelledTurn) -> None:
        """Use KV that another turn of the conversation has computed since this one came."""
        if turn.begun or turn.fetched:
            return
        turn.begun = True
        cached = min(turn.history, self.cache.get(turn.conversation, 0))
        if cached > turn.cached:
            turn.remaining -= cached - turn.cached
            turn.cached = cached

    def _remember(self, turn: ModelledTurn, tokens: int) -> None:
        self.cache[turn.conversation] = max(tokens, self.cache.get(turn.conversation, 0))
        self.cache.move_to_end(turn.conversation)
        while sum(self.cache.values()) > self.rates.cache_tokens:
            self.cache.popitem(last=False)
