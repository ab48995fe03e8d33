"""Renders conversations to prompts with a model's Jinja template.

Templates get the environment that Hugging Face transformers defines: sandboxed and immutable, with loop
controls, `raise_exception`, `strftime_now`, `tojson`, `{% generation %}`. `template_guard.py` limits time and
size, `template_probes.py` finds the shape of messages that a template reads, `text/losses.py` what it leaves
out.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from types import MappingProxyType
from typing import Any, NoReturn, Self

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from services.worker.text.losses import Marker, seems_whole, with_markers
from services.worker.text.template_guard import GuardedEnvironment, TemplateOverran
from services.worker.text.template_marks import MarkLiterals
from services.worker.text.template_probes import ProbedTemplate, TemplateRefused, probe_template
from services.worker.text.template_shape import TemplateShape, template_messages
from services.worker.text.tool_prompt import NOTHING, TemplateInput, knows_tools, tool_dict
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, ToolDefinition

LIMIT_S = 5.0
PROBES_S = 1.0  # CPU time of all renderings at the start
TOOL_USE = "tool_use"  # the name of a template for requests with tools
_DOCUMENTS = re.compile(r"\bdocuments\b")
_MOST_CHARS = 500  # of an error of a template, which may hold what it was given


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
        special_tokens: Variables such as `bos_token`.
        now: Clock of `strftime_now`, in local time as templates expect.
        named: More templates by name, of which `tool_use` is for requests with tools. A request may choose
            one with the variable `chat_template`.
        needs_tools: It is only for requests with tools.

    Attributes:
        probed: What its rendering of markers has shown.

    Raises:
        InvalidRequest: A template cannot be compiled.
    """

    def __init__(
        self,
        source: str,
        special_tokens: dict[str, str],
        now: Callable[[], datetime] = datetime.now,
        *,
        named: Mapping[str, str] = MappingProxyType({}),
        needs_tools: bool = False,
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
        self._named = {
            name: ChatTemplate(text, special_tokens, now, needs_tools=name == TOOL_USE)
            for name, text in named.items()
        }
        self._requires_texts = True
        self.probed = self._probe(needs_tools=needs_tools)

    @property
    def sources(self) -> str:
        """The texts of this template and of those with a name."""
        return "\n".join([self.source, *(template.source for template in self._named.values())])

    @property
    def special_tokens(self) -> dict[str, str]:
        """Variables such as `bos_token`."""
        return dict(self._variables)

    @property
    def findings(self) -> list[str]:
        """What is unusual about the template and those with a name, in sentences."""
        named = [
            f"{finding} (template {name!r})"
            for name, template in self._named.items()
            for finding in template.probed.findings
        ]
        return [*self.probed.findings, *named]

    @property
    def reserved(self) -> frozenset[str]:
        """Names of variables that a request cannot set."""
        own = {"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"}
        # a template that knows no documents would leave them out of the prompt
        unknown = () if _DOCUMENTS.search(self.sources) else ("documents",)
        return frozenset(own.union(self._variables, unknown, () if self._named else ("chat_template",)))

    def with_marks(self, texts: Iterable[str], before: str, after: str) -> tuple[Self, frozenset[str]]:
        """Make a template that marks the texts that it writes itself.

        Args:
            texts: Control tokens.
            before: Mark before such a text.

        Returns:
            The template, and those of the texts that it searches for in messages.
        """
        texts = list(texts)
        marking, marks = copy(self), MarkLiterals(texts, before, after)
        tree = marks.visit(self._environment.parse_guarded(self.source))
        marking._template = _compiled(self._environment, tree)
        marking._requires_texts = False
        named = {name: template.with_marks(texts, before, after) for name, template in self._named.items()}
        marking._named = {name: template for name, (template, _) in named.items()}
        return marking, frozenset(marks.searched).union(*(searched for _, searched in named.values()))

    @property
    def knows_tools(self) -> bool:
        """Whether the template writes tools itself."""
        return self._named.get(TOOL_USE, self).probed.shape.own_tools

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
            limit_s: Time limit of each rendering; there are two if a text seems to be missing.
            generation_prompt: End with the beginning of the assistant's message.

        Raises:
            InvalidRequest: The template refuses the conversation, for example its order of roles, or the
                variables that the request gave; or it leaves out the text of a message or a call.
            TemplateOverran: It took longer than `limit_s`.
        """
        template = self._chosen(given)
        try:
            prompt = template._rendered(messages, limit_s, given, generation_prompt=generation_prompt)
            if template._requires_texts and (template.probed.loses_text or not seems_whole(prompt, messages)):
                marked, markers = with_markers(messages)
                shown = template._rendered(marked, limit_s, given, generation_prompt=generation_prompt)
                _require_markers(shown, markers)
            return prompt
        except TemplateRefused as error:
            param, what = "messages", "these messages"
            for given_less, name, text in (
                (TemplateInput(given.tools), "template", "the variables of the request"),
                (TemplateInput((), given.variables), "tools", "the tools of the request"),
            ):
                if given_less == given or param != "messages":
                    continue
                with suppress(TemplateRefused, TemplateOverran):
                    template._rendered(messages, limit_s, given_less, generation_prompt=generation_prompt)
                    param, what = name, text
            raise InvalidRequest(f"the model's chat template refuses {what}: {error}", param=param) from error

    def _chosen(self, given: TemplateInput) -> "ChatTemplate":
        """Return the template for a request by the rule of transformers: the named one, else by tools."""
        name = given.variables.get("chat_template") if self._named else None
        if name is None:
            return self._named.get(TOOL_USE, self) if given.tools else self
        if name == "default":
            return self
        if not isinstance(name, str) or name not in self._named:
            known = ", ".join(["default", *self._named])
            raise InvalidRequest(
                f"the model has no chat template of the name {str(name)[:80]!r}; it has {known}",
                param="template",
                variable="chat_template",
            )
        return self._named[name]

    def _rendered(
        self,
        messages: Sequence[ChatMessage],
        limit_s: float,
        given: TemplateInput,
        *,
        generation_prompt: bool,
        shape: TemplateShape | None = None,
    ) -> str:
        """Render messages in a shape; None: in that of the template."""
        self._environment.limit_time(limit_s)
        variables: dict[str, Any] = {
            "documents": None,
            **given.variables,
            "messages": template_messages(messages, given.tools, shape or self.probed.shape, self.source),
            "tools": [tool_dict(tool) for tool in given.tools] or None,
            "add_generation_prompt": generation_prompt,
            **self._variables,
        }
        try:
            return self._template.render(variables)
        except (TemplateOverran, MemoryError):
            raise
        except Exception as error:  # a template is a program, and what it is given decides what it raises
            raise TemplateRefused(f"{error}"[:_MOST_CHARS]) from error

    def _probe(self, *, needs_tools: bool) -> ProbedTemplate:
        ends = time.thread_time() + PROBES_S

        def render(
            messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition], shape: TemplateShape
        ) -> str:
            left_s, given = max(0.0, ends - time.thread_time()), TemplateInput(tools)
            return self._rendered(messages, left_s, given, generation_prompt=True, shape=shape)

        return probe_template(render, mentions_tools=knows_tools(self.source), needs_tools=needs_tools)


def _require_markers(prompt: str, markers: Sequence[Marker]) -> None:
    prompt = prompt.lower()
    for marker in markers:
        if marker.text.lower() not in prompt:
            raise InvalidRequest(
                f"messages.{marker.number}: the model's chat template leaves out {marker.what}, so the model "
                "would answer without it",
                param="messages",
                index=marker.number,
            )
