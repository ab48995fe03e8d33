"""A grammar that is ready: it makes the constraints of choices."""

from services.worker.text.grammars.grammar_limits import MOST_ITEMS
from services.worker.text.grammars.matcher_constraint import MatcherConstraint
from services.worker.text.grammars.matcher_source import MatcherSource
from services.worker.text.grammars.token_vocabulary import TokenVocabulary


class GrammarRefused(Exception):
    """llguidance refuses a grammar; the text is its own."""


_TRIAL_TOKENS = 4  # that are followed at once, to see that it can be


class CompiledGrammar:
    """A compiled grammar. Thread-safe; a call returns the constraint of one choice.

    Args:
        vocabulary: Of the model.
        text: The grammar in llguidance's own form, as `LLMatcher.grammar_from_lark` returns it.
        items: That a row of the parser may have, `parser_limits`.

    Attributes:
        text: As given; so is `items`.

    Raises:
        GrammarRefused: It is wrong, too large, or no text satisfies it.
    """

    def __init__(self, vocabulary: TokenVocabulary, text: str, items: int = MOST_ITEMS) -> None:
        self.text, self.items = text, items
        self._vocabulary, self._source = vocabulary, MatcherSource(vocabulary, text, items)
        if self._source.error:
            raise GrammarRefused(self._source.error)
        trial = self._source.new_matcher().matcher
        for _ in range(_TRIAL_TOKENS):
            mask = trial.compute_bitmask()
            if trial.is_error() or not any(mask):
                why = trial.get_error()
                raise GrammarRefused("no text satisfies it" if not why or "NoExtension" in why else why)
            if trial.is_stopped():
                break
            trial.consume_token(_first_token(mask, vocabulary))
            trial.compute_ff_tokens()

    def __call__(self) -> MatcherConstraint:
        """Returns a constraint at the beginning of an answer."""
        return MatcherConstraint(self._source, self._vocabulary.ends, self._vocabulary.end_mask)


def _first_token(mask: bytes, vocabulary: TokenVocabulary) -> int:
    """Returns a token of a mask, one that does not end the answer if there is one."""
    allowed = [8 * at + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]
    return next((token_id for token_id in allowed if token_id not in vocabulary.ends), allowed[0])
