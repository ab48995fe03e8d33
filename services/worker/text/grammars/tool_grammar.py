"""What grammars of tool calls are made of: Lark text of our own, with checked schemas in it."""

import secrets
from collections.abc import Iterable, Mapping

from llguidance import LLMatcher

from services.worker.text.grammars.compiled_grammar import CompiledGrammar
from services.worker.text.grammars.lark_grammar import lark_text
from services.worker.text.grammars.token_vocabulary import TokenVocabulary

_CUT = f"\ue000{secrets.token_hex(8)}\ue000"  # random, so that no text of a caller has it


def lark_fixed(control: Mapping[str, int], text: str) -> str:
    """Returns a fixed text of a form as terms of a Lark grammar, control tokens by their ids.

    What `as_plain_text` returned for a part of it is text, also where it has the text of a control token.
    """
    if not text:
        return ""
    for token, token_id in control.items():
        before, found, after = text.partition(token)
        if found:
            return f"{lark_fixed(control, before)} {lark_token(token_id)} {lark_fixed(control, after)}"
    return lark_text(text.replace(_CUT, ""))


def as_plain_text(control: Iterable[str], text: str) -> str:
    """Returns a caller's text for `lark_fixed`, such that no control token is made of it."""
    for token in control:
        text = text.replace(token, token[:1] + _CUT + token[1:])
    return text


def lark_token(token_id: int) -> str:
    """Returns a token as a term of a Lark grammar, for special tokens, which have no text."""
    return f"<[{token_id}]>"


def compile_lark(text: str, vocabulary: TokenVocabulary) -> CompiledGrammar:
    """Returns a grammar of Lark text that was made here; a caller's text goes through `compile_structured`.

    Raises:
        GrammarRefused: llguidance refuses it, for example a `oneOf` in one of its schemas.
    """
    return CompiledGrammar(vocabulary, LLMatcher.grammar_from_lark(text))
