"""The state of a grammar at the beginning of a choice, behind what the answer has so far."""

from collections.abc import Callable

from services.worker.domain.constraints.forced_text import ForcedText
from services.worker.domain.generation.generation import Generation
from services.worker.domain.generation.token_constraint import (
    ConstraintFactory,
    ConstraintFailed,
    TokenConstraint,
)
from services.worker.leader.intake.continued_prompts import GivenAnswer
from services.worker.model_files.model import Model
from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.text.grammars.after_reasoning import ReasonedGrammar
from services.worker.text.grammars.guest_form import guest_lark
from services.worker.text.grammars.replayed_grammar import ReplayedGrammar
from services.worker.text.grammars.unique_keys import UniqueKeys
from shared.errors import InvalidRequest, Unavailable
from shared.guests.needs import GUEST_CANNOT


class GrammarStates:
    """Makes them.

    Args:
        of_guest: Returns whether a guest follows the grammars, and what it brings is checked by them.
    """

    def __init__(self, model: Model, of_guest: Callable[[], bool]) -> None:
        self._model = model
        self._of_guest = of_guest

    def form_for_guest(self, generation: Generation) -> DemandedForm | None:
        """Returns what a guest has to follow; None: the answer is free, or no guest computes."""
        if generation.constraint is None or not self._of_guest():
            return None
        request = generation.request
        called = request.tools is not None and request.tools.choice in ("required", "named")
        return DemandedForm(guest_lark(generation.constraint), None if called else request.structured)

    def state_of(
        self, generation: Generation, before: list[int], given: GivenAnswer | None, *, in_reasoning: bool
    ) -> TokenConstraint | None:
        """Returns the constraint of a choice, after the tokens that earlier attempts have generated."""
        grammar = generation.constraint
        if isinstance(grammar, ReplayedGrammar) and given is None:
            return _replayed(grammar, before)
        constraint = None if grammar is None else _begun(grammar, given, in_reasoning=in_reasoning)
        if isinstance(constraint, UniqueKeys):
            constraint.refuses = self._of_guest()
        if given is not None and given.speller is not None:
            barred = self._model.eos_ids.union(generation.request.sampling.stop_token_ids)
            constraint = ForcedText(given.speller, given.forced, constraint, barred)
        if constraint is None:
            return None
        try:
            constraint.accept(before)
        except ConstraintFailed as error:
            raise InvalidRequest(
                f"resume.token_ids does not follow the form that the answer is to have: {error}",
                param="resume",
            ) from error
        return constraint.inner if isinstance(constraint, ForcedText) and constraint.is_over else constraint


def _replayed(grammar: ReplayedGrammar, before: list[int]) -> TokenConstraint:
    """Returns the state of a grammar behind what a guest has written."""
    try:
        return grammar.behind(before)
    except ConstraintFailed as error:
        raise Unavailable(
            "the answer cannot go on: what a guest wrote of it is not followed by the grammar here; send the "
            f"request again ({error})",
            reason=GUEST_CANNOT,
        ) from error


def _begun(grammar: ConstraintFactory, given: GivenAnswer | None, *, in_reasoning: bool) -> TokenConstraint:
    """Returns the state of a grammar behind the beginning of an answer that is in the prompt."""

    def begun(tokens: list[int]) -> TokenConstraint:
        constraint = grammar.begun() if in_reasoning and isinstance(grammar, ReasonedGrammar) else grammar()
        constraint.accept(tokens)
        return constraint

    if given is None:
        return begun([])
    try:
        if given.dropped:
            begun(given.kept + given.dropped)
        return begun(given.kept)
    except ConstraintFailed as error:
        raise InvalidRequest(
            f"the last message does not follow the form that the answer is to have: {error}", param="messages"
        ) from error
