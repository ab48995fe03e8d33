"""JSON as engines of others write it: their white space and order of keys, and nothing else, are let pass."""

import json

import pytest

from services.worker.domain.generation.token_constraint import TokenConstraint, TokenRefused
from services.worker.null.model import END, ByteTokenizer
from services.worker.text.grammars.answer_grammar import AnswerForm, compile_answer
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.replayed_grammar import ReplayedGrammar
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.messages import StructuredOutput

VOCABULARY = TokenVocabulary(ByteTokenizer(), frozenset([END]), 257)
SCHEMA = {
    "type": "object",
    "properties": {
        "note": {"type": "string"},
        "fixed": {"const": {"properties": {"z": 1, "a": 2}, "required": ["a"]}},
        "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}},
    },
    "required": ["fixed", "rows"],
    "additionalProperties": False,
    "$defs": {
        "row": {
            "type": "object",
            "properties": {"x": {"type": "null"}, "y": {"type": "number"}},
            "required": ["y"],
            "additionalProperties": False,
        }
    },
}
FORM = StructuredOutput(kind="json_schema", definition=json.dumps(SCHEMA))
FIXED = '"fixed":{"properties":{"z":1,"a":2},"required":["a"]}'
INDENTED = """
{
  "fixed" : {"properties":{"z": 1,"a":2},

 "required":["a"]} ,"rows":[
 {"y":1.5,"x":null}]
}
"""


def accepted(constraint: TokenConstraint, text: str) -> None:
    constraint.accept([*text.encode(), END])


@pytest.mark.parametrize("text", [f'{{{FIXED},"rows":[]}}', f'{{{FIXED},"rows":[],"note":"n"}}', INDENTED])
def test_their_white_space_and_order_are_let_pass(text: str) -> None:
    json.loads(text)
    accepted(compile_answer(AnswerForm(FORM, None, "server"), VOCABULARY, GrammarLimits())(), text)
    with pytest.raises(TokenRefused):
        accepted(compile_answer(AnswerForm(FORM, None), VOCABULARY, GrammarLimits())(), text)


@pytest.mark.parametrize(
    "text",
    [
        f'{{{FIXED},"rows":[{{"x":null}}]}}',  # a key is missing
        f'{{{FIXED},"rows":[],"other":1}}',
        f'{{{FIXED},"rows":[]',
        '{"fixed":{"properties":{"a":2,"z":1},"required":["a"]},"rows":[]}',  # a constant is as it was given
    ],
)
def test_all_else_is_refused(text: str) -> None:
    grammar = compile_answer(AnswerForm(FORM, None, "server"), VOCABULARY, GrammarLimits())
    with pytest.raises(TokenRefused):
        accepted(grammar(), text)


def test_what_another_engine_began_goes_on_in_its_form_and_else_in_ours() -> None:
    grammar = compile_answer(AnswerForm(FORM, None, "either"), VOCABULARY, GrammarLimits())
    assert isinstance(grammar, ReplayedGrammar)
    ours = '{"note": "n", "fixed": {"properties": {"z": 1, "a": 2}, "required": ["a"]}, "rows": []}'
    for text, first in ((ours, 0), (INDENTED, 2)):
        for cut in (first, 4, 20, len(text)):
            grammar.behind(list(text[:cut].encode())).accept([*text[cut:].encode(), END])
    with pytest.raises(TokenRefused):
        grammar.behind(list(b'{"rows":'))
