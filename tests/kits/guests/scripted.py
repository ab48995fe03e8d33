"""A guest inside the test's process, which answers as the null engine does, or brings what a test says."""

import asyncio
from collections.abc import Callable

from llguidance import grammar_from

from services.worker.guests.port import Ability, FinishedBy, GuestFacts, GuestPart, GuestSequence
from services.worker.null.blocks import NullSequence
from services.worker.null.model import END, ByteTokenizer
from services.worker.rank_protocol.plan import Alternative, Sampled
from services.worker.rank_protocol.step_masks import ANY_TOKEN
from services.worker.text.grammars.compiled_grammar import CompiledGrammar, MatcherConstraint
from services.worker.text.grammars.token_vocabulary import TokenVocabulary

LETTERS = [*range(97, 123)]
VOCABULARY = TokenVocabulary(ByteTokenizer(), frozenset([END]), 257)
ABLE: frozenset[Ability] = frozenset(
    {"continuation", "deterministic", "logprobs", "token_ids_in", "token_ids_out"}
)

FORMED: frozenset[Ability] = ABLE | {"choice", "gbnf", "grammar", "json_schema"}


class ScriptedGuest:
    """Position p gets `tokens[p % len(tokens)]`, whatever the prompt says, or what the form allows there.

    Args:
        by_itself: It goes on with open sequences by itself, a part in each iteration of the event loop; else
            the test calls `bring`.
        burst: Tokens of a part that it brings by itself.

    Attributes:
        sequences: Those that are open, by id.
        opened: All that were opened.
        closed: Ids that were closed, in order.
        starts: How often it was started.
        start_s: How long a start takes.
        start_error: What the next start raises.
    """

    def __init__(
        self,
        *,
        tokens: list[int] = LETTERS,
        facts: GuestFacts | None = None,
        by_itself: bool = False,
        burst: int = 1,
    ) -> None:
        self.facts = facts or GuestFacts(
            name="scripted", fingerprint="null", context_length=2048, vocab_size=257, abilities=ABLE
        )
        self.sequences: dict[int, GuestSequence] = {}
        self.opened: list[GuestSequence] = []
        self.closed: list[int] = []
        self.starts = self.stops = 0
        self.start_s = 0.0
        self.start_error: Exception | None = None
        self._tokens = tokens
        self._by_itself = by_itself
        self._burst = burst
        self._known: dict[int, NullSequence] = {}
        self._forms: dict[int, MatcherConstraint] = {}
        self._on_part: Callable[[GuestPart], None] = lambda _: None
        self._on_failure: Callable[[str], None] = lambda _: None

    async def start(self) -> GuestFacts:
        self.starts += 1
        await asyncio.sleep(self.start_s)
        error, self.start_error = self.start_error, None
        if error is not None:
            raise error
        return self.facts

    def watch(self, on_part: Callable[[GuestPart], None], on_failure: Callable[[str], None]) -> None:
        self._on_part, self._on_failure = on_part, on_failure

    def open(self, sequence: GuestSequence) -> None:
        seq_id = sequence.new.seq_id
        assert seq_id not in self.sequences
        self.sequences[seq_id] = sequence
        self.opened.append(sequence)
        self._known[seq_id] = NullSequence(sequence.new, "", 0)
        if sequence.new.form is not None:
            if len(sequence.new.token_ids) > sequence.new.prompt_len:
                self.fail(seq_id, "its grammar begins with the answer, and this one goes on in the middle")
                return
            self._forms[seq_id] = CompiledGrammar(VOCABULARY, grammar_from("lark", sequence.new.form.lark))()
        if self._by_itself:
            asyncio.get_running_loop().call_soon(self._go_on, seq_id)

    def close(self, seq_id: int) -> None:
        self.closed.append(seq_id)
        self._forget(seq_id)

    def status(self) -> dict[str, object]:
        return {"guest": self.facts.name}

    async def stop(self) -> None:
        self.stops += 1
        self.sequences.clear()
        self._known.clear()

    def bring(self, seq_id: int, count: int = 1) -> None:
        """Brings the next tokens of a sequence in one part, and its end if it ends with them."""
        sequence, known = self.sequences[seq_id], self._known[seq_id]
        ends = {*sequence.new.sampling.stop_token_ids}
        if not sequence.new.sampling.ignore_eos:
            ends.update(sequence.new.eos_ids)
        sampled: list[Sampled] = []
        finished: FinishedBy = ""
        while len(sampled) < count and not finished:
            position = len(known.tokens)
            form, wanted = self._forms.get(seq_id), self._tokens[position % len(self._tokens)]
            mask = form.mask() if form is not None else ANY_TOKEN
            wanted = END if mask[END // 8 :] == b"\1" else wanted  # it ends as soon as it may
            token_id = known.choose(wanted, mask, 257)
            if form is not None:
                form.accept([token_id])
            known.tokens.append(token_id)
            top = [Alternative(token_id, 0.0)] if known.logprobs > 0 else []
            sampled.append(Sampled(seq_id=seq_id, token_id=token_id, top=top))
            if token_id in ends:
                finished = "stop"
            elif len(known.tokens) - len(sequence.new.token_ids) >= sequence.max_tokens:
                finished = "length"
        if finished:
            self._forget(seq_id)
        self.send(GuestPart(seq_id=seq_id, sampled=sampled, finished=finished))

    def send(self, part: GuestPart) -> None:
        """Brings any part."""
        self._on_part(part)

    def fail(self, seq_id: int, why: str) -> None:
        """Ends a sequence with an error."""
        self._forget(seq_id)
        self.send(GuestPart(seq_id=seq_id, error=why))

    def die(self, why: str) -> None:
        """Is gone, with all its sequences."""
        self.sequences.clear()
        self._known.clear()
        self._on_failure(why)

    def _go_on(self, seq_id: int) -> None:
        if seq_id in self.sequences:
            self.bring(seq_id, self._burst)
            asyncio.get_running_loop().call_soon(self._go_on, seq_id)

    def _forget(self, seq_id: int) -> None:
        self.sequences.pop(seq_id, None)
        self._known.pop(seq_id, None)
        self._forms.pop(seq_id, None)
