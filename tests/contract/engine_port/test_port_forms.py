"""What engines promise about answers that have a form: guests follow it by themselves, and are checked."""

import json
import re
from collections.abc import Callable
from typing import Literal

import pytest

from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.text.grammars.answer_grammar import AnswerForm, compile_answer
from services.worker.text.grammars.guest_form import guest_lark
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.guests.needs import form_need
from shared.messages import StructuredOutput
from tests.contract.engine_port.conftest import Port
from tests.contract.engine_port.engines import ENGINES, having
from tests.kits.guests.port_runs import Ended
from tests.kits.schemas.schema_case import validator

pytestmark = pytest.mark.asyncio(loop_scope="package")  # in which engines that are kept live
SCHEMA = {
    "type": "object",
    "properties": {
        "state": {"enum": ["open", "closed"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "rows": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "boolean"}},
    },
    "required": ["state", "count", "rows"],
    "additionalProperties": False,
}
CHOICES = ["a red house", 'a blue \\ "house"']


def is_of_schema(text: str) -> bool:
    return bool(validator(SCHEMA).is_valid(json.loads(text)))


FORMS: dict[str, tuple[StructuredOutput, Callable[[str], object]]] = {
    "schema": (StructuredOutput(kind="json_schema", definition=json.dumps(SCHEMA)), is_of_schema),
    "regex": (
        StructuredOutput(kind="regex", definition="[a-c]{3}(x|yy)[0-9]{2}"),
        re.compile("[a-c]{3}(x|yy)[0-9]{2}").fullmatch,
    ),
    "choice": (StructuredOutput(kind="choice", choices=CHOICES), CHOICES.__contains__),
    "lark": (
        StructuredOutput(kind="grammar", definition='start: "x" B "."\nB: /b{2,5}/'),
        re.compile("xb{2,5}[.]").fullmatch,
    ),
    "gbnf": (
        StructuredOutput(kind="grammar", definition='root ::= "no" | "yes" [!?]'),
        re.compile("no|yes[!?]").fullmatch,
    ),
}


async def ask(
    port: Port,
    form: StructuredOutput,
    checked: StructuredOutput | None = None,
    before: list[int] | None = None,
) -> Ended:
    """Runs a sequence whose answer has a form; a guest is checked by another one if a test says so."""
    model = port.model
    vocabulary = TokenVocabulary(model.tokenizer, model.eos_ids, port.info.vocab_size, model.control_texts)
    writer: Literal["us", "server"] = "us" if "grammar" in port.declared else "server"
    told, own = (
        compile_answer(AnswerForm(one, None, writer), vocabulary, GrammarLimits())
        for one in (form, checked or form)
    )
    return await port.run.generate(
        port.prompt,
        200,
        before=before,
        eos_ids=model.eos_ids,
        constraint=own(),
        form=DemandedForm(guest_lark(told), form) if port.info.streams else None,
    )


def text_of(port: Port, ended: Ended) -> str:
    model = port.model
    return model.tokenizer.decode([one for one in ended.tokens if one not in model.eos_ids])


FOLLOWED = [
    pytest.param(engine, name, id=f"{name}-{engine_name}", marks=engine.marks)
    for name, (form, _) in FORMS.items()
    for engine_name, engine in ENGINES.items()
    if form_need(form) in engine.abilities
]


@pytest.mark.parametrize(("port", "name"), FOLLOWED, indirect=["port"])
async def test_an_answer_has_its_form_and_ends_by_itself(port: Port, name: str) -> None:
    form, fits = FORMS[name]
    ended = await ask(port, form)
    assert (ended.error, ended.reason) == ("", "stop")
    assert fits(text_of(port, ended)), text_of(port, ended)


@having("choice")
async def test_what_is_free_beside_it_stays_free(port: Port) -> None:
    alone = (await port.greedy(9)).tokens
    beside = port.run.add(port.prompt, 9)
    ended = await ask(port, FORMS["choice"][0])
    assert text_of(port, ended) in CHOICES
    assert len(port.run.came(beside).tokens) == len(alone)


@having("choice", "guest")
async def test_what_a_guest_brings_against_the_form_is_its_own_error(port: Port) -> None:
    other = StructuredOutput(kind="choice", choices=["a red horse"])
    ended = await ask(port, StructuredOutput(kind="choice", choices=["a red house"]), other)
    assert ended.reason == "error"
    assert "not of the form" in ended.error
    assert ended.sampled[-1].cause == "guest"
    brought = text_of(port, Ended(ended.sampled[:-1], ""))
    assert "a red ho".startswith(brought), "nothing that is refused has come"


@having("choice", "guest")
async def test_a_guest_that_ends_before_the_form_may_end_has_an_error(port: Port) -> None:
    longer = StructuredOutput(kind="choice", choices=["a red house of stone"])
    ended = await ask(port, StructuredOutput(kind="choice", choices=["a red house"]), longer)
    assert (ended.reason, ended.sampled[-1].cause) == ("error", "guest")
    assert text_of(port, ended) == "a red house"


@having("choice", "guest")
async def test_a_guest_goes_on_with_no_form_in_the_middle_of_an_answer(port: Port) -> None:
    begun = port.model.tokenizer.encode("a", add_special_tokens=False)
    ended = await ask(port, FORMS["choice"][0], before=begun)
    assert (ended.reason, ended.tokens) == ("error", [])
    assert "middle" in ended.error
