"""Grammars of the stand-in for vLLM, which llguidance follows with the demo model's tokenizer."""

from functools import cache
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer, grammar_from

VOCAB_SIZE = 2048
END = 1
_TOKENIZER = Path(__file__).parents[5] / "models" / "demo" / "tokenizer.json"


class Followed:
    """The state of one answer in its grammar; empty: it is free."""

    def __init__(self, text: str) -> None:
        self._matcher = text and LLMatcher(_tokenizer(), grammar_from("grammar", text), log_level=0)

    def choose(self, token_id: int) -> int:
        """The token if it may come, else the end, else the first that may."""
        if not self._matcher:
            return token_id
        mask = self._matcher.compute_bitmask()
        allowed = [one for one in range(VOCAB_SIZE) if mask[one // 8] >> one % 8 & 1]
        chosen = next((one for one in (token_id, END) if one in allowed), allowed[0])
        if not self._matcher.is_stopped():
            self._matcher.consume_token(chosen)
        return chosen


def check(text: str) -> None:
    """Refuses what is no grammar."""
    if wrong := LLMatcher.validate_grammar(grammar_from("grammar", text)):
        raise ValueError(f"Grammar error: {wrong}")


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(_TOKENIZER.read_text(), n_vocab=VOCAB_SIZE, eos_token=END)
