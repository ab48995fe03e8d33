"""What servers are asked for where an answer has a form, and what they are not asked for."""

import json

import pytest
from llguidance import grammar_from

from services.worker.guests.port import Ability
from services.worker.guests.remote.demands import unmet
from services.worker.guests.remote.wire.native_forms import form_fields
from services.worker.null.model import END, ByteTokenizer
from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.text.grammars.answer_grammar import AnswerForm, compile_answer
from services.worker.text.grammars.compiled_grammar import CompiledGrammar
from services.worker.text.grammars.guest_form import guest_lark
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.messages import StructuredOutput
from tests.kits.guests.guest_runs import guest_sequence

SCHEMA = {"type": "object", "properties": {"a": {"type": "null"}}}
BY_SCHEMA = StructuredOutput(kind="json_schema", definition=json.dumps(SCHEMA))


@pytest.mark.parametrize(
    ("structured", "fields"),
    [
        (StructuredOutput(kind="json_object"), {"json_schema": {"type": "object"}}),
        (BY_SCHEMA, {"json_schema": SCHEMA}),
        (StructuredOutput(kind="grammar", definition='root ::= "a"'), {"grammar": 'root ::= "a"'}),
        (StructuredOutput(kind="choice", choices=["a", "b"]), {"grammar": 'root ::= "a" | "b"'}),
        (None, {}),
    ],
)
def test_llama_cpp_is_told_a_form_in_its_notation(
    structured: StructuredOutput | None, fields: dict[str, object]
) -> None:
    assert form_fields(DemandedForm("start: X", structured), by_lark=False) == fields
    lark = form_fields(DemandedForm("start: X", structured), by_lark=True)
    assert lark == {"grammar": "%llguidance {}\nstart: X"}


def test_llama_cpp_is_not_sent_what_its_llguidance_does_not_know() -> None:
    vocabulary = TokenVocabulary(ByteTokenizer(), frozenset([END]), 257)
    lark = guest_lark(compile_answer(AnswerForm(BY_SCHEMA, None), vocabulary, GrammarLimits()))
    grammar = form_fields(DemandedForm(lark, BY_SCHEMA), by_lark=True)["grammar"]
    _, _, options = lark.partition('"x-guidance": ')
    known, _, newer = options.partition(', "json_allowed_escapes": ')
    assert newer
    assert grammar.partition('"x-guidance": ')[2].startswith(known + "}}\n")


def test_any_text_is_a_choice_in_its_notation() -> None:
    choices = ['a "quoted" \\ text', "two\nlines\tand\r", "\x01\x7f", "狐 \U0001f642"]
    structured = StructuredOutput(kind="choice", choices=choices)
    gbnf = form_fields(DemandedForm("", structured), by_lark=False)["grammar"]
    vocabulary = TokenVocabulary(ByteTokenizer(), frozenset([END]), 257)
    grammar = CompiledGrammar(vocabulary, grammar_from("gbnf", gbnf))
    for choice in choices:
        constraint = grammar()
        constraint.accept([*choice.encode(), END])


@pytest.mark.parametrize(
    ("form", "abilities", "says"),
    [
        (DemandedForm("start: X", BY_SCHEMA), {"json_schema"}, ""),
        (DemandedForm("start: X", BY_SCHEMA), {"grammar"}, ""),
        (DemandedForm("start: X", BY_SCHEMA), {"choice"}, "json_schema"),
        (DemandedForm("start: X"), {"json_schema", "choice"}, "grammar"),
        (DemandedForm(""), {"grammar"}, "may make or not"),
    ],
)
def test_a_form_needs_its_ability(form: DemandedForm, abilities: set[Ability], says: str) -> None:
    sequence = guest_sequence([1, 2], form=form, sampling=EngineSampling())
    found = unmet(sequence, frozenset(abilities))
    assert says in found
    assert bool(found) == bool(says)


def test_no_form_begins_in_the_middle_of_an_answer() -> None:
    sequence = guest_sequence([1, 2], generated=[3], form=DemandedForm("start: X", BY_SCHEMA))
    assert "middle of an answer with json_schema" in unmet(sequence, frozenset({"json_schema"}))
    assert "middle of an answer with grammar" in unmet(sequence, frozenset({"grammar"}))
