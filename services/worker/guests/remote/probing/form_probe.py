"""Finds out which forms of answers a server follows: those whose only answer it gives."""

import asyncio
import json
from typing import Any, Final

from services.worker.guests.port import Ability
from services.worker.guests.remote.probing.small_answers import SmallAnswers
from services.worker.guests.remote.wire.dialect import Dialect
from services.worker.guests.remote.wire.native_dialect import NativeDialect
from services.worker.guests.remote.wire.openai_dialect import FORM_FIELDS, OpenAIDialect
from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.text.grammars.json_schema.schema_grammar import OPTIONS
from shared.messages import StructuredOutput

_TOKENS = 64  # the answers have 24 bytes
_VALUE: Final[dict[str, Any]] = {"probe": "狐", "number": 12}
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {name: {"const": value} for name, value in _VALUE.items()},
    "required": list(_VALUE),
    "additionalProperties": False,
}
# with the options of our own grammars: a server whose llguidance is older may not know all of them
_LARK: Final = f"start: %json {json.dumps(_SCHEMA | {'x-guidance': OPTIONS}, ensure_ascii=False)}"
_WRITTEN: Final = json.dumps(_VALUE, ensure_ascii=False)
_BY_LARK = DemandedForm(_LARK)
_BY_SCHEMA = DemandedForm("", StructuredOutput(kind="json_schema", definition=json.dumps(_SCHEMA)))
_BY_CHOICE = DemandedForm("", StructuredOutput(kind="choice", choices=[_WRITTEN]))
# what a server that follows Lark for llguidance can do
_ALL_FORMS: Final[frozenset[Ability]] = frozenset({"choice", "gbnf", "grammar", "json_schema"})
_OWN_FORMS: Final[tuple[tuple[DemandedForm, frozenset[Ability]], ...]] = (
    (_BY_SCHEMA, frozenset({"json_schema"})),
    (_BY_CHOICE, frozenset({"choice", "gbnf"})),
)


class FormProbe:
    """The probe of one server.

    Args:
        prompt: Any prompt, in the form that the server takes.
    """

    def __init__(self, answers: SmallAnswers, prompt: list[int] | str) -> None:
        self._answers = answers
        self._prompt = prompt

    async def run(self, dialect: Dialect) -> tuple[Dialect, frozenset[Ability]]:
        """Returns the dialect with which it is asked for forms, and what it can do with it.

        Raises:
            ServerError: It does not answer.
        """
        forms = frozenset[Ability]()
        if isinstance(dialect, OpenAIDialect):
            for field in FORM_FIELDS:
                asking = dialect.with_form_field(field)
                if await self._follows(asking, _BY_LARK):
                    return asking, _ALL_FORMS
        elif isinstance(dialect, NativeDialect):
            by_lark = dialect.with_lark()
            if await self._follows(by_lark, _BY_LARK):
                return by_lark, _ALL_FORMS
            found = await asyncio.gather(*(self._follows(dialect, form) for form, _ in _OWN_FORMS))
            for shown, (_, abilities) in zip(found, _OWN_FORMS, strict=True):
                forms |= abilities if shown else frozenset()
        return dialect, forms

    async def _follows(self, dialect: Dialect, form: DemandedForm) -> bool:
        try:
            answer = await self._answers.ask(dialect, self._prompt, max_tokens=_TOKENS, form=form)
        except ServerError as error:
            if error.gone:
                raise
            return False
        if form is _BY_SCHEMA:  # its white space is the server's
            return answer.finished == "stop" and "".join(answer.text.split()) == _WRITTEN.replace(" ", "")
        return answer.finished == "stop" and answer.text == _WRITTEN
