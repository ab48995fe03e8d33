"""A grammar that is ready: it makes the constraints of choices."""

from llguidance import LLMatcher

from services.worker.text.grammars.grammar_limits import parser_limits
from services.worker.text.grammars.matcher_constraint import MatcherConstraint
from services.worker.text.grammars.token_vocabulary import TokenVocabulary


class GrammarRefused(Exception):
    """llguidance refuses a grammar; the text is its own."""


class CompiledGrammar:
    """A compiled grammar. Thread-safe; a call returns the constraint of one choice.

    Args:
        vocabulary: Of the model.
        text: The grammar in llguidance's own form, as `LLMatcher.grammar_from_lark` returns it.

    Raises:
        GrammarRefused: It is wrong, too large, or no text satisfies it.
    """

    def __init__(self, vocabulary: TokenVocabulary, text: str) -> None:
        self._vocabulary = vocabulary
        self._matcher = LLMatcher(vocabulary.library, text, log_level=0, limits=parser_limits())
        self._raise_error()
        trial = self._matcher.deep_copy()
        mask = trial.compute_bitmask()
        if not trial.is_error() and any(mask):
            return
        why = trial.get_error()
        raise GrammarRefused("no text satisfies it" if not why or "NoExtension" in why else why)

    def __call__(self) -> MatcherConstraint:
        """Returns a constraint at the beginning of an answer."""
        vocabulary = self._vocabulary
        return MatcherConstraint(self._matcher.deep_copy(), vocabulary.ends, vocabulary.end_mask)

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise GrammarRefused(self._matcher.get_error())
