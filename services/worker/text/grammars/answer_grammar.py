"""Compiles the grammar of an answer: of a text, of calls, or of either."""

from dataclasses import dataclass
from typing import Literal

from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.text.grammars.call_grammar import EnforcedCalls, compile_calls, compile_calls_or_text
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.replayed_grammar import ReplayedGrammar
from services.worker.text.grammars.structured_grammar import compile_structured
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.grammars.unique_keys import UniqueKeysGrammar
from shared.messages import StructuredOutput

_BOUNDED = ("json_object", "choice")
_JSON = ("json_object", "json_schema")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer consists of, reasoning aside; it has a text, calls, or both.

    Attributes:
        text: The demanded form of the text; None if the answer is calls.
        calls: Those that are enforced; None if there are none.
        writer: Whose form JSON has: an engine of others has its own white space and order of keys. `either`:
            it may have begun with the answer.
    """

    text: StructuredOutput | None
    calls: EnforcedCalls | None
    writer: Literal["us", "server", "either"] = "us"

    @property
    def is_bounded(self) -> bool:
        """Whether the cost of compiling it is known to be small: a constant, or a list of constants."""
        return self.calls is None and self.text is not None and self.text.kind in _BOUNDED


def compile_answer(form: AnswerForm, vocabulary: TokenVocabulary, limits: GrammarLimits) -> ConstraintFactory:
    """Returns the constraint of an answer. May take a second; thread-safe.

    Raises:
        InvalidRequest: As `compile_structured` and `compile_calls`.
    """
    if form.text is None:
        assert form.calls is not None
        return compile_calls(form.calls, vocabulary, limits)
    by_server = form.writer == "server" and form.text.kind in _JSON
    compiled = compile_structured(form.text, vocabulary, limits, by_server=by_server)
    if form.calls is not None:
        return compile_calls_or_text(form.calls, compiled, vocabulary, limits)
    if form.text.kind not in _JSON:
        return compiled
    grammar = UniqueKeysGrammar(compiled, vocabulary)
    if form.writer != "either":
        return grammar
    servers = compile_structured(form.text, vocabulary, limits, by_server=True)
    return ReplayedGrammar(grammar, UniqueKeysGrammar(servers, vocabulary))
