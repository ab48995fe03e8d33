"""Conversations to prompts, by the Jinja template that comes with a model.

Templates are written for the environment that Hugging Face transformers defines, and get the same one here:
sandboxed and immutable, with loop controls, `raise_exception`, `strftime_now`, `tojson`, `{% generation %}`.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import InvalidRequest
from shared.messages import ChatMessage


class _Generation(Extension):
    """`{% generation %}` marks what the assistant says, for training; here it only shows its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 defines it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class ChatTemplate:
    """A compiled template.

    now: the clock behind `strftime_now`, in local time as templates expect.
    """

    def __init__(
        self, source: str, special_tokens: dict[str, str], now: Callable[[], datetime] = datetime.now
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the model's chat template is broken: {error}", param="model") from error
        self._variables = {"bos_token": "", "eos_token": "", **special_tokens}

    def render(self, messages: list[ChatMessage]) -> str:
        """The prompt that asks for the assistant's next message.

        Raises:
            InvalidRequest: the template refuses the conversation, for example an order of roles.
        """
        plain = [
            {"role": m.role, "content": m.content, **({"name": m.name} if m.name else {})} for m in messages
        ]
        try:
            return self._template.render(
                messages=plain, add_generation_prompt=True, tools=None, documents=None, **self._variables
            )
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
