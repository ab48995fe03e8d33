"""Grammars in Lark's syntax, or in EBNF as llama.cpp writes it (GBNF), which llguidance converts.

llguidance has directives that reach beyond text: schemas of its own reading, options, token numbers. A
caller's grammar may not use them; those that are made here, for tools, may.
"""

import json
import re

from llguidance import grammar_from

from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.repetition_bound import check_repetitions

_EBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_QUOTED = re.compile(
    r"\"(?:\\.|[^\"\\\n])*\"i?|//[^\n]*|/(?:\\.|[^/\\])+/[a-z]*|#[^\n]*",  # expressions may have line breaks
    re.DOTALL,
)
_DIRECTIVES = {
    "%json": re.compile(r"%json\b"),
    "%llguidance": re.compile(r"%llguidance\b"),
    "<...>, a token that is no text,": re.compile(r"<[^<>\s]*>"),
    "@...": re.compile(r"@\w"),
}
_ALL_REPETITIONS = 100_000  # of all rules multiplied, since rules may repeat each other
_ROUGH_COUNTS = re.compile(r"\{\s*(\d{1,9})?\s*,?\s*(\d{1,9})?\s*\}|~\s*(\d{1,9})(?:\s*\.\.\s*(\d{1,9}))?")


def lark_text(text: str) -> str:
    """Returns a text as a term of a Lark grammar; an empty one is a term as well."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # llguidance takes no bare DEL


def caller_grammar(definition: str, limits: GrammarLimits) -> str:
    """Returns llguidance's form of a caller's grammar.

    Raises:
        ValueError: It uses what is not served; the text says what.
    """
    bare = _QUOTED.sub(" ", definition)
    is_gbnf = _EBNF.search(bare) is not None  # its converter refuses all directives
    for name, directive in _DIRECTIVES.items():
        if not is_gbnf and directive.search(bare):
            raise ValueError(f"{name} is not served in a grammar")
    if bare.count("&") > limits.intersections:
        raise ValueError(f"it has more than {limits.intersections} times `&`")
    for quoted in _QUOTED.findall(definition):
        if len(quoted) > limits.regex_chars:
            raise ValueError(f"it has a text or an expression of more than {limits.regex_chars} characters")
    check_repetitions(definition, limits, literals=False)
    if _product(definition) > _ALL_REPETITIONS:
        raise ValueError(f"the repetitions of its rules multiply to more than {_ALL_REPETITIONS}")
    try:
        return grammar_from("gbnf" if is_gbnf else "lark", definition)
    except Exception as error:  # the converter raises what it meets
        raise ValueError(" ".join(str(error).split())[:240]) from error


def _product(definition: str) -> int:
    product = 1
    for line in definition.split("\n"):
        counts = [max(map(int, filter(None, found))) for found in _ROUGH_COUNTS.findall(line) if any(found)]
        product *= max([1, *counts])
        if product > _ALL_REPETITIONS:
            break
    return product
