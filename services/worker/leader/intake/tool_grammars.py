"""Decides which grammar holds for the tool calls of a request.

A required call is enforced from the first token, a call that the model makes by itself from the text that
opens it. If no tool is strict, the latter is only a help: where it cannot be had, the answer is free.
"""

import functools
from dataclasses import dataclass

import msgspec

from services.worker.leader.intake.answer_forms import AnswerForms
from services.worker.leader.intake.grammar_compiler import Work, digest_of
from services.worker.leader.intake.tool_checks import offered_tools
from services.worker.model import Model
from services.worker.text.answers.marker_detokenizer import marker_tokens
from services.worker.text.grammars.call_grammar import EnforcedCalls, compile_calls
from shared.errors import InvalidRequest
from shared.messages import GenerateRequest


@dataclass(frozen=True, slots=True)
class ToolGrammar:
    """A grammar that is to be compiled.

    Attributes:
        work: Compiles it.
        digest: Names it.
        optional: The answer may be free if it cannot be had.
    """

    work: Work
    digest: bytes
    optional: bool


class ToolGrammars:
    """Finds the grammars.

    Args:
        model: Its control tokens.
        forms: In which its answers call tools.
    """

    def __init__(self, model: Model, forms: AnswerForms) -> None:
        self._model = model
        self._forms = forms

    def grammar_of(self, request: GenerateRequest) -> ToolGrammar | None:
        """Returns the grammar for a request's calls; None if they are free.

        Raises:
            InvalidRequest: What it demands cannot be enforced.
        """
        use, tools = request.tools, offered_tools(request)
        if use is None or not tools or request.structured is not None:
            return None
        required, strict = use.choice in ("required", "named"), any(tool.strict for tool in tools)
        if request.sampling.ignore_eos:
            if required or strict:
                raise InvalidRequest(
                    "`ignore_eos` does not go with tools that are enforced; leave it out", param="ignore_eos"
                )
            return None
        form = self._forms.tool_format(request)
        syntax = form.calls[0] if form.calls else None
        if syntax is None or not syntax.enforced or not (required or syntax.opens):
            if strict:
                raise InvalidRequest(
                    f"in the tool format {form.name!r} strict tools are enforced only where a call is "
                    "required; leave `strict` out, or require a call",
                    param="tools",
                )
            return None
        calls = EnforcedCalls(
            syntax=syntax,
            tools=tools,
            control=self._control(syntax.texts()),
            many=use.parallel and use.choice != "named",
            required=required,
            only=use.name if use.choice == "named" else "",
        )
        described = msgspec.msgpack.encode((form.name, calls.tools, calls.many, required, calls.only))
        return ToolGrammar(
            functools.partial(compile_calls, calls),
            digest_of(b"tools", described),
            optional=not required and not strict,
        )

    def _control(self, texts: tuple[str, ...]) -> dict[str, int]:
        return {text: token_id for token_id, text in marker_tokens(self._model.tokenizer, texts).items()}
