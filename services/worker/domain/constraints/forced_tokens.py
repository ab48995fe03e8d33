"""Moves the grammar of a sequence on by its tokens, and finds those that it forces after them.

A run of forced tokens has no alternative, so none of them is sampled: the scheduler appends all at once and
computes them like a prompt, in one chunk if they fit into a step. Where log probabilities are asked for, each
of them is sampled under a mask that allows it alone, which gives the same tokens.

What comes next must depend on the tokens only. So a run is always complete: it ends where the grammar leaves
a choice, and a caller gets it whole, with the token before it (`ChoiceState.take_delta`). A state that is
rebuilt from the tokens that a caller has then forces nothing more.
"""

from typing import Literal, NamedTuple

from services.worker.domain.constraints.forced_text import ForcedText
from services.worker.domain.generation.token_constraint import (
    TokenConstraint,
    TokenRefused,
    is_too_complex,
)
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.plan import Sampled
from shared.messages import FinishReason


class Advance(NamedTuple):
    """A token of a sequence.

    Attributes:
        sampled: The token; it was sampled, or forced by a grammar. With an error there is none: the sequence
            cannot go on, and is removed.
        finish_reason: Why it was the last token; its blocks are free already. None if the sequence goes on.
        end: Index after the token in the sequence.
    """

    sequence: Sequence
    sampled: Sampled
    finish_reason: FinishReason | None
    end: int = 0


def advance(sequence: Sequence, sampled: Sampled) -> list[Advance]:
    """Appends a sampled token to a sequence, and those that its grammar forces after it.

    Returns:
        The tokens in order. If the grammar fails, one with an error instead; the caller ends the sequence.
    """
    reason = sequence.take(sampled.token_id)
    taken = [Advance(sequence, sampled, reason, len(sequence.tokens))]
    if sequence.form is not None:
        refused = _refused_by_form(sequence)
        return taken if refused is None else [Advance(sequence, refused, None, len(sequence.tokens))]
    if sequence.constraint is None or reason is not None:
        return taken
    try:
        run = _accept_newest(sequence, sequence.constraint)
    except Exception as error:  # a bug in one grammar must not end the others
        return [Advance(sequence, _failed(sequence, error), None, len(sequence.tokens))]
    if run:
        first = len(sequence.tokens) + 1
        for end, (token_id, reason) in enumerate(sequence.append_run(run), first):
            taken.append(Advance(sequence, Sampled(seq_id=sampled.seq_id, token_id=token_id), reason, end))
        sequence.pending = 0  # what a step in flight samples for it is the first of the run
    return taken


def force_first(sequence: Sequence) -> list[int]:
    """Returns the tokens that the grammar forces before anything is sampled; the caller appends them.

    Call it once, when the grammar has accepted what earlier attempts have generated.
    """
    return _force(sequence, sequence.constraint) if sequence.constraint and not sequence.form else []


def _refused_by_form(sequence: Sequence) -> Sampled | None:
    """Checks the newest token of a guest, which follows the form of the answer by itself; None: it may come.

    A token of the request's `stop_token_ids` cuts the answer, as `max_tokens` does, and need not fit.
    """
    token_id = sequence.tokens[-1]
    is_end = token_id in sequence.eos_ids and not sequence.sampling.ignore_eos
    if sequence.constraint is None or (token_id in sequence.sampling.stop_token_ids and not is_end):
        return None
    try:
        sequence.constraint.accept([token_id])
    except TokenRefused as error:
        why = f"what it brought is not of the form that the answer must have: {error}"
        return Sampled(seq_id=sequence.seq_id, token_id=0, error=why, cause="guest")
    except Exception as fault:  # a bug in one grammar must not end the others
        return _failed(sequence, fault)
    return None


def _failed(sequence: Sequence, error: Exception) -> Sampled:
    """Returns what ends a sequence whose grammar took no token."""
    sequence.grammar_error = error
    cause: Literal["demand", "grammar"] = "demand" if is_too_complex(error) else "grammar"
    why = f"its grammar failed: {error}"
    return Sampled(seq_id=sequence.seq_id, token_id=0, error=why, cause=cause)


def _accept_newest(sequence: Sequence, constraint: TokenConstraint) -> list[int]:
    """Moves the grammar on by the newest token; returns what is to be appended now."""
    if sequence.forced:  # the grammar has accepted the whole run
        sequence.forced.pop(0)
        return []
    constraint.accept(sequence.tokens[-1:])
    _drop_forced_text(sequence)
    return _force(sequence, constraint)


def _drop_forced_text(sequence: Sequence) -> None:
    """Leaves the grammar alone with a sequence whose forced text has come, or nothing."""
    constraint = sequence.constraint
    if isinstance(constraint, ForcedText) and constraint.is_over:
        sequence.constraint = constraint.inner


def _force(sequence: Sequence, constraint: TokenConstraint) -> list[int]:
    """Returns the run that the grammar forces, or keeps it to be sampled one by one."""
    room, run = sequence.max_tokens - sequence.num_output, list[int]()
    if sequence.repeated is not None:
        room += sequence.repeated.most  # which do not count; `append_run` ends where the output is full
    while len(run) < room and (forced := constraint.forced()):
        constraint.accept(forced)
        run += forced
    _drop_forced_text(sequence)
    if constraint.ended and len(sequence.eos_ids) == 1:  # of several the model chooses
        run += sequence.eos_ids
    del run[room:]
    if sequence.sampling.logprobs >= 0:
        sequence.forced, run = run, []
    return run
