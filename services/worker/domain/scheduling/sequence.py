"""A sequence: one choice of a request on its way through the engine.

Knows its tokens, how many of them are computed, and whether it ends by length, by an end-of-sequence token or
by a stop token.
Stop strings are a matter of text (`domain/answers/choice_state.py`).
"""

import math
from dataclasses import dataclass, field
from enum import Enum

from services.worker.domain.adapters.sequence_adapter import SequenceAdapter
from services.worker.domain.constraints.forced_text import RepeatedText
from services.worker.domain.generation.token_constraint import TokenConstraint
from services.worker.rank_protocol.adapters import NO_ADAPTER
from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import NewSequence
from shared.messages import EmbeddingOptions, FinishReason
from shared.telemetry.timelines import UNRECORDED, RequestTimeline

FIRST = 2**62  # more than there are arrivals


class SequencePhase(Enum):
    """The phases of a sequence; a preempted one is waiting again."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request, as the scheduler sees it.

    Attributes:
        tokens: Prompt and output in one list, as far as the leader knows them.
        tenant: Whose it is; decides which blocks it finds.
        party: For whom it counts where parties share a group; left out: its tenant.
        weight: Of its party beside others.
        order: Sorts by priority, then arrival: the smaller goes first and is preempted last.
        seq_id: The engine's name for the sequence, a new one with each admission.
        announced: The ranks know the sequence under `seq_id`.
        computed: The KV of so many first tokens is in the blocks.
        planned: The same when the steps in flight are done.
        pending: Tokens that the steps in flight will bring.
        capacity: Tokens that its blocks hold.
        new_blocks: Blocks that were not sent to the ranks yet.
        sliding_capacity: Tokens that the sliding blocks sent to the ranks hold; no limit if
            there is no pool of these.
        block_names: Names of its full blocks.
        cached_tokens: Tokens that the first admission found in the blocks; -1 before it.
        stored: Leading blocks that the store is known to have; -1 if the store is not to be asked.
        always_fetch: Fetches stored blocks whatever it costs.
        fetching: Number of the fetch that is under way for it; 0 for none.
        fetched_tokens: Tokens whose KV was fetched.
        trial_tokens: Tokens that it has to bring in steps of its own (`crash_trials.py`); 0 if not on trial.
        first: The first choice of the request, which names the blocks of the prompt for all; None for itself.
        constraint: The grammar of its output, which has accepted its output tokens and `forced`; None if it
            has none.
        form: The same for a guest, which follows it by itself; then `constraint` only checks what it brings.
        forced: Tokens that its grammar forces next and that are sampled one by one (`forced_tokens.py`).
        grammar_error: Why its grammar gave no mask, or did not take a token; None if it did not fail.
        run_start: Index of the first of the newest tokens that were appended without being sampled, and may
            not be computed yet.
        embedding: The embedding that it is computed for; then it has no output.
        scored: Tokens of the prompt whose log probabilities have come; -1: none are wanted.
        prompt_only: It ends with its prompt and has no output.
        repeated: Counts its first tokens that only repeat the end of a text that was given; None: none does.
        repeated_tokens: Such tokens so far; they are no output.
        timeline: When its request passed the parts of the leader.
        adapter: What it runs with beside the base; None: nothing.
        slot: That of its adapter while it runs.
        entered_with: Its output tokens when it came in.
    """

    request_id: str  # the leader's key of it, see `request_key`
    choice: int
    tokens: list[int]
    prompt_len: int
    max_tokens: int
    sampling: EngineSampling
    eos_ids: frozenset[int] = frozenset()
    tenant: str = ""
    party: str = ""
    weight: float = 1.0
    priority: int = 0
    arrival: int = 0
    deadline: float = math.inf
    order: tuple[int, int] = field(init=False)
    phase: SequencePhase = SequencePhase.NEW
    seq_id: int = 0
    announced: bool = False
    computed: int = 0
    planned: int = 0
    pending: int = 0
    capacity: int = 0
    new_blocks: list[int] = field(default_factory=list)
    sliding_capacity: int = 0
    block_names: list[bytes] = field(default_factory=list)
    cached_tokens: int = -1
    stored: int = 0
    always_fetch: bool = False
    fetching: int = 0
    fetched_tokens: int = 0
    num_preemptions: int = 0
    trial_tokens: int = 0
    first: "Sequence | None" = None
    constraint: TokenConstraint | None = None
    form: DemandedForm | None = None
    embedding: EmbeddingOptions | None = None
    scored: int = -1
    prompt_only: bool = False
    timeline: RequestTimeline = UNRECORDED
    forced: list[int] = field(default_factory=list)
    grammar_error: Exception | None = None
    run_start: int = FIRST
    repeated: RepeatedText | None = None
    repeated_tokens: int = 0
    adapter: SequenceAdapter | None = None
    slot: int = NO_ADAPTER
    entered_with: int = 0

    def __post_init__(self) -> None:
        self.order = (-self.priority, self.arrival)
        self.party = self.party or self.tenant

    def enqueued_as(self, arrival: int, *, first: bool = False) -> None:
        """Sets its number in the order of arrival; later sequences have higher numbers.

        Args:
            arrival: Number of the arrival.
            first: Puts it before all of its priority that are not `first`, since it has waited before.
        """
        self.arrival = arrival - FIRST if first else arrival
        self.order = (-self.priority, self.arrival)

    @property
    def resumed(self) -> bool:
        """Whether it was admitted elsewhere before, and so goes before others."""
        return self.arrival < 0

    @property
    def remaining(self) -> int:
        """Tokens whose KV no step computes yet; 1 while decoding."""
        return len(self.tokens) + self.pending - self.planned

    @property
    def num_output(self) -> int:
        """Tokens generated so far, those before a resume or a preemption included."""
        return len(self.tokens) - self.prompt_len - self.repeated_tokens

    @property
    def is_scored_later(self) -> bool:
        """Whether log probabilities of its prompt are still to come."""
        return 0 <= self.scored < self.prompt_len

    @property
    def computes_all(self) -> bool:
        """Whether each token is to be computed, also those whose KV is in the cache or in the store."""
        return self.is_scored_later or (self.embedding is not None and self.embedding.pooling == "mean")

    @property
    def is_masked(self) -> bool:
        """Whether masks limit its tokens."""
        return self.constraint is not None and self.form is None

    @property
    def has_run(self) -> bool:
        """Whether it decodes, and forced tokens are to be computed together with its newest sampled one."""
        return self.planned >= self.run_start - 1

    def repeat_text(self, repeated: RepeatedText) -> None:
        """Lets its first tokens repeat a text, those that it has included."""
        self.repeated = repeated
        self.repeated_tokens = sum(map(repeated.count_token, self.tokens[self.prompt_len :]))

    def append_run(self, token_ids: list[int]) -> list[tuple[int, FinishReason | None]]:
        """Appends forced tokens.

        Returns:
            Those that were appended, the last one with the reason to end; later ones are left out.
        """
        if token_ids:
            self.run_start = len(self.tokens)
        taken: list[tuple[int, FinishReason | None]] = []
        for token_id in token_ids:
            reason = self.take(token_id)
            taken.append((token_id, reason))
            if reason is not None:
                break
        return taken

    def take(self, token_id: int) -> FinishReason | None:
        """Appends a sampled token; returns why it is the last one, or None."""
        if self.prompt_only:
            return "length" if self.embedding is None else "stop"
        self.tokens.append(token_id)
        if self.repeated is not None:
            self.repeated_tokens += self.repeated.count_token(token_id)
        return self.end_reason()

    def end_reason(self) -> FinishReason | None:
        """Returns why the sequence ends with its newest token; None if it goes on."""
        num_output = len(self.tokens) - self.prompt_len - self.repeated_tokens
        if num_output:
            last, sampling = self.tokens[-1], self.sampling
            if (last in self.eos_ids and not sampling.ignore_eos) or last in sampling.stop_token_ids:
                return "stop"
        return "length" if num_output >= self.max_tokens else None

    def announce(self) -> NewSequence:
        """Returns what the ranks have to know about it before its first chunk, and marks it announced."""
        self.announced = True
        left = self.max_tokens - self.num_output
        if self.repeated is not None:
            left += self.repeated.most  # which are no output
        return NewSequence(
            seq_id=self.seq_id,
            token_ids=self.tokens.copy(),
            prompt_len=self.prompt_len,
            sampling=self.sampling,
            choice=self.choice,
            eos_ids=sorted(self.eos_ids),
            embedding=self.embedding,
            scored=self.scored,
            adapter=self.slot,
            max_tokens=max(1, left),
            tenant=self.tenant,
            form=self.form,
        )
