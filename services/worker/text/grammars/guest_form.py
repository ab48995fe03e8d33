"""Says a grammar that was compiled here as one text, for engines of others that use llguidance as well."""

import json
from typing import Any, Final

from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.text.grammars.compiled_grammar import CompiledGrammar
from services.worker.text.grammars.unique_keys import UniqueKeysGrammar

# A rule that no other engine of grammars can read, so none takes the text and means something else by it:
# vLLM converts what it can for xgrammar.
_ONLY_LLGUIDANCE: Final = '\nryz_unused: %json {"type": "null"}\n'


def guest_lark(grammar: ConstraintFactory) -> str:
    """Returns the Lark text of a grammar that holds from the first token on; empty: it is of another kind.

    That no key comes twice in an object is not in it: the leader checks it.
    """
    compiled = grammar.inner if isinstance(grammar, UniqueKeysGrammar) else grammar
    if not isinstance(compiled, CompiledGrammar):
        return ""
    text = _lark(compiled.text)
    return text and text + _ONLY_LLGUIDANCE


def _lark(text: str) -> str:
    """Returns Lark for llguidance's own form, which is Lark, or JSON of one or more grammars."""
    if not text.startswith("{"):
        return text
    grammars: list[dict[str, Any]] = json.loads(text)["grammars"]
    if len(grammars) != 1:
        return ""
    (only,) = grammars
    if only.get("lark_grammar"):
        return str(only["lark_grammar"])
    schema = only.get("json_schema")
    return "" if schema is None else f"start: %json {json.dumps(schema, ensure_ascii=False)}"
