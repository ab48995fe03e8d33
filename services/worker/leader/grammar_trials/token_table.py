"""The leader's vocabulary in the trial process: a table of bytes, without the tokenizer that it came from."""

from collections.abc import Set
from typing import TYPE_CHECKING, cast

from services.worker.leader.grammar_trials.trial_messages import TrialSetup
from services.worker.text.grammars.structured_grammar import compile_structured
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.messages import StructuredOutput

if TYPE_CHECKING:
    from services.worker.text.tokenizer import Tokenizer


class TokenTable:
    """The part of `Tokenizer` that a `TokenVocabulary` needs.

    It tokenizes nothing, so forced texts are spelled with the longest tokens. That changes which tokens an
    answer would get, and neither masks nor what is refused.
    """

    has_token_bytes = True
    special_texts: frozenset[str] = frozenset()

    def __init__(self, tokens: list[bytes], special_ids: list[int]) -> None:
        self._tokens = tokens
        self.special_ids = frozenset(special_ids)
        self.vocab_size = len(tokens)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Returns nothing."""
        return []

    def without(self, texts: Set[str]) -> "TokenTable":
        """Returns itself."""
        return self

    def token_text(self, token_id: int) -> str:
        """See `Tokenizer`."""
        return self._tokens[token_id].decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer`."""
        return self._tokens[token_id]


def vocabulary_of(setup: TrialSetup) -> TokenVocabulary:
    """Returns a vocabulary with the masks of the leader's."""
    table = cast("Tokenizer", TokenTable(setup.tokens, setup.special_ids))
    vocabulary = TokenVocabulary(table, frozenset(setup.ends), setup.vocab_size)
    vocabulary.unspelled("")  # computes what all trials need; so does a compilation
    compile_structured(StructuredOutput(kind="json_object"), vocabulary, setup.limits)
    return vocabulary
