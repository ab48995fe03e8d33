"""Renders conversations to prompts with a model's Jinja template.

Templates get the environment that Hugging Face transformers defines: sandboxed and immutable, with loop
controls, `raise_exception`, `strftime_now`, `tojson`, `{% generation %}`. `template_guard.py` limits time and
size.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from datetime import datetime
from typing import Any, NoReturn, Self

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from services.worker.text.template_guard import GuardedEnvironment, TemplateOverran
from services.worker.text.template_marks import MarkLiterals
from services.worker.text.tool_prompt import (
    NOTHING,
    TemplateInput,
    in_words,
    knows_tools,
    message_dicts,
    tool_dict,
)
from shared.errors import InvalidRequest
from shared.messages import ChatMessage

LIMIT_S = 5.0
_MOST_CHARS = 500  # of an error of a template, which may hold what it was given


class TemplateRefused(Exception):
    """The template raised an error."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here only its content counts."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 defines it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compiled(environment: GuardedEnvironment, tree: nodes.Template) -> jinja2.Template:
    """Returns a template with its global names in one dict: Jinja copies its chain of dicts each time."""
    template = environment.from_string(tree)
    template.globals = dict(template.globals)
    return template


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class ChatTemplate:
    """A compiled template.

    Args:
        source: The template.
        special_tokens: Variables such as `bos_token`.
        now: Clock of `strftime_now`, in local time as templates expect.

    Raises:
        InvalidRequest: The template cannot be compiled.
    """

    def __init__(
        self, source: str, special_tokens: dict[str, str], now: Callable[[], datetime] = datetime.now
    ) -> None:
        environment = GuardedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        self.source = source
        self._environment = environment
        try:
            self._template = _compiled(environment, environment.parse_guarded(source))
        except (jinja2.TemplateError, RecursionError) as error:
            raise InvalidRequest(f"the model's chat template is broken: {error}", param="model") from error
        self._variables = {"bos_token": "", "eos_token": "", **special_tokens}

    @property
    def reserved(self) -> frozenset[str]:
        """Names of variables that a request cannot set."""
        own = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
        return frozenset(own | set(self._variables))

    def with_marks(self, texts: Iterable[str], before: str, after: str) -> tuple[Self, frozenset[str]]:
        """Make a template that marks the texts that it writes itself.

        Args:
            texts: Control tokens.
            before: Mark before such a text.
            after: Mark after it.

        Returns:
            The template, and those of the texts that it searches for in messages.
        """
        marking, marks = copy(self), MarkLiterals(texts, before, after)
        tree = marks.visit(self._environment.parse_guarded(self.source))
        marking._template = _compiled(self._environment, tree)
        return marking, frozenset(marks.searched)

    @property
    def knows_tools(self) -> bool:
        """Whether the template writes tools itself."""
        return knows_tools(self.source)

    def render(
        self,
        messages: list[ChatMessage],
        limit_s: float = LIMIT_S,
        given: TemplateInput = NOTHING,
        *,
        generation_prompt: bool = True,
    ) -> str:
        """Render the prompt for the assistant's next message.

        Args:
            messages: The conversation.
            limit_s: Time limit.
            given: Tools and variables.
            generation_prompt: End with the beginning of the assistant's message.

        Raises:
            InvalidRequest: The template refuses the conversation, for example its order of roles, or the
                variables that the request gave.
            TemplateOverran: It took longer than `limit_s`.
        """
        try:
            return self._rendered(messages, limit_s, given, generation_prompt=generation_prompt)
        except TemplateRefused as error:
            param = "messages"
            if given.variables:
                bare = TemplateInput(given.tools)
                with suppress(TemplateRefused, TemplateOverran):
                    self._rendered(messages, limit_s, bare, generation_prompt=generation_prompt)
                    param = "template"
            what = "these messages" if param == "messages" else "the variables of the request"
            raise InvalidRequest(f"the model's chat template refuses {what}: {error}", param=param) from error

    def _rendered(
        self,
        messages: list[ChatMessage],
        limit_s: float,
        given: TemplateInput,
        *,
        generation_prompt: bool,
    ) -> str:
        self._environment.limit_time(limit_s)
        if not self.knows_tools:
            messages = in_words(messages, given.tools)
        variables: dict[str, Any] = {
            **given.variables,
            "messages": message_dicts(messages, self.source),
            "tools": [tool_dict(tool) for tool in given.tools] or None,
            "documents": None,
            "add_generation_prompt": generation_prompt,
            **self._variables,
        }
        try:
            return self._template.render(variables)
        except (TemplateOverran, MemoryError):
            raise
        except Exception as error:  # a template is a program, and what it is given decides what it raises
            raise TemplateRefused(f"{error}"[:_MOST_CHARS]) from error
