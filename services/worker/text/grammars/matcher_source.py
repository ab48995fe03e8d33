"""Makes the matchers of one grammar, and makes it anew when its lexer is full.

Copies of a matcher share a lexer. llguidance counts the lexer's states over all of them and stops for good at
a limit (`parser_limits`), so a grammar that serves many answers is full some day.
"""

import threading
import time
from typing import NamedTuple

from llguidance import LLMatcher

from services.worker.text.grammars.limits import MOST_ITEMS, parser_limits
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.library_panics import guarded

SLOW_S = 0.02  # a grammar that takes longer is not compiled while the event loop waits
SPARE_AFTER_TOKENS = 500  # of all answers; the limit holds at least some thousand


class NumberedMatcher(NamedTuple):
    """A matcher at the beginning of an answer, and the number of the lexer that it uses."""

    matcher: LLMatcher
    lexer: int


class MatcherSource:
    """Copies one compiled matcher, and replaces it on demand. Thread-safe.

    A grammar that is slow to compile is compiled a second time in a thread while the first one is in use, so
    that `renew` need not.

    Args:
        text: The grammar in llguidance's own form.
        items: That a row of the parser may have.
    """

    def __init__(self, vocabulary: TokenVocabulary, text: str, items: int = MOST_ITEMS) -> None:
        self._vocabulary, self._text, self._limits = vocabulary, text, parser_limits(items)
        began = time.perf_counter()
        self._base = self._compile()
        self._is_slow = time.perf_counter() - began > SLOW_S
        self._lexer = self._used = 0
        self._lock = threading.Lock()
        self._spare: LLMatcher | None = None
        self._maker: threading.Thread | None = None  # of the spare

    @property
    def error(self) -> str:
        """Why the grammar is refused; empty if it is not."""
        return str(self._base.get_error())

    def new_matcher(self) -> NumberedMatcher:
        """Returns a matcher at the beginning of an answer."""
        with self._lock:
            return self._copy()

    def renew(self, full: int) -> NumberedMatcher:
        """Returns a matcher at the beginning of an answer that does not use the lexer of that number."""
        with self._lock:
            if full == self._lexer:  # else another answer has met the limit before
                if self._maker is not None:
                    self._maker.join()
                self._base = self._spare or self._compile()
                self._lexer, self._used = self._lexer + 1, 0
                self._spare = self._maker = None
            return self._copy()

    def count_tokens(self, number: int) -> None:
        """Notes that answers have grown by so many tokens."""
        self._used += number
        if self._is_slow and self._used > SPARE_AFTER_TOKENS and self._maker is None:
            with self._lock:
                if self._maker is None:
                    self._maker = threading.Thread(target=self._make_spare, daemon=True)
                    self._maker.start()

    def _copy(self) -> NumberedMatcher:
        return NumberedMatcher(guarded(self._base.deep_copy), self._lexer)

    def _make_spare(self) -> None:
        self._spare = self._compile()

    def _compile(self) -> LLMatcher:
        return guarded(LLMatcher, self._vocabulary.library, self._text, log_level=0, limits=self._limits)
