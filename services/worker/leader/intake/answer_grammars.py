"""Decides which grammar holds for the answer to a request: of its text, of its tool calls, or of both.

A required call is enforced from the first token, a call that the model makes by itself from the text that
opens it. If no tool is strict, the latter is only a help: where it cannot be had, the answer is free. Where
the text has a form (`structured`), an answer is calls or such a text. Reasoning before it is free.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.leader.intake.answer_forms import AnswerForms
from services.worker.leader.intake.grammar_compiler import Work, digest_of
from services.worker.leader.intake.tool_checks import has_parts, offered_tools, requires_call
from services.worker.model_files.model import Model
from services.worker.text.answers.marker_detokenizer import marker_tokens
from services.worker.text.answers.tool_format import ReasoningMarks, ToolFormat
from services.worker.text.grammars.after_reasoning import ReasonedGrammar, ReasoningTokens
from services.worker.text.grammars.answer_grammar import AnswerForm, compile_answer
from services.worker.text.grammars.call_grammar import EnforcedCalls
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.errors import InvalidRequest
from shared.guests.needs import GRAMMAR, begun_by_guest
from shared.messages import GenerateRequest, GuestCard, ToolDefinition


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    """A grammar that is to be compiled.

    Attributes:
        param: The field of the request that it comes from.
        trial: The encoded `AnswerForm`, which is compiled on trial before; empty if its cost is bounded.
        optional: The answer may be free if it cannot be had.
    """

    work: Work
    digest: bytes
    param: str
    trial: bytes
    optional: bool = False


class AnswerGrammars:
    """Finds the grammars.

    Args:
        guest: Returns the guest that computes; None: an engine of ours, which follows masks.
    """

    def __init__(
        self, model: Model, forms: AnswerForms, guest: Callable[[], GuestCard | None] = lambda: None
    ) -> None:
        self._model = model
        self._forms = forms
        self._guest = guest

    def grammar_of(self, request: GenerateRequest) -> AnswerGrammar | None:
        """Returns the grammar for the answer to a request; None if it is free.

        Raises:
            InvalidRequest: What it demands cannot be enforced.
        """
        calls = self._calls(request) if request.tools is not None else None
        text = None if calls is not None and calls.required else request.structured
        if calls is None and text is None:
            return None
        if calls is None and has_parts(request) and self._forms.tool_format(request).channels:
            calls = self._enforced(request, self._forms.tool_format(request), [])
        required = text is not None or (calls is not None and calls.required)
        optional = not required and calls is not None and not any(tool.strict for tool in calls.tools)
        if optional and self._guest() is not None:
            return None  # it would have to be told where the calls begin
        marks = self._forms.reasoning if has_parts(request) else None
        form = AnswerForm(text, calls, self._writer(request))
        work = functools.partial(compile_answer, form)
        if marks is not None:
            work = functools.partial(self._after_reasoning, work, marks, required)
        described, its_marks = msgspec.msgpack.encode(form), msgspec.msgpack.encode(marks)
        param = "tools" if text is None else "structured"
        trial = b"" if form.is_bounded else described
        return AnswerGrammar(work, digest_of(b"answer", described, its_marks), param, trial, optional)

    def _writer(self, request: GenerateRequest) -> Literal["us", "server", "either"]:
        """Returns whose form JSON has: guests that know no Lark have their own."""
        guest = self._guest()
        if guest is not None:
            return "server" if GRAMMAR in guest.lacks else "us"
        return "either" if begun_by_guest(request.resume) else "us"

    def _calls(self, request: GenerateRequest) -> EnforcedCalls | None:
        """Returns the calls that a grammar enforces; None if they are free, or there are none."""
        use, tools = request.tools, offered_tools(request)
        if use is None or not tools:
            return None
        required, strict = requires_call(request), any(tool.strict for tool in tools)
        if request.sampling.ignore_eos:
            if required or strict:
                raise InvalidRequest(
                    "`ignore_eos` does not go with tools that are enforced; leave it out", param="ignore_eos"
                )
            return None
        form = self._forms.tool_format(request)
        syntax = form.calls[0] if form.calls else None
        anywhere = required or request.structured is not None  # a call is known by where it begins
        if syntax is None or not syntax.enforced or not (anywhere or syntax.opens):
            if strict:
                raise InvalidRequest(
                    f"in the tool format {form.name!r} strict tools are enforced only where a call is "
                    "required; leave `strict` out, or require a call",
                    param="tools",
                )
            return None
        return self._enforced(request, form, tools)

    def _enforced(
        self, request: GenerateRequest, form: ToolFormat, tools: Sequence[ToolDefinition]
    ) -> EnforcedCalls:
        use, syntax = request.tools, form.calls[0]
        named = use.name if use is not None and use.choice == "named" else ""
        return EnforcedCalls(
            syntax=syntax,
            tools=tools,
            control=self._control((*syntax.texts(), form.text_before, form.again)),
            many=use is not None and use.parallel and not named and not form.channels,
            required=requires_call(request),
            only=named,
            again=form.again,
            text_before=form.text_before,
        )

    def _after_reasoning(
        self,
        work: Work,
        marks: ReasoningMarks,
        binding: bool,
        vocabulary: TokenVocabulary,
        limits: GrammarLimits,
    ) -> ConstraintFactory:
        control = self._control((marks.opens, marks.closes))
        opens, close_id = control.get(marks.opens), control.get(marks.closes, -1)
        tokens = ReasoningTokens(
            tuple(vocabulary.tokens_of(marks.opens.encode())) if opens is None else (opens,),
            marks.closes.encode(),
            close_id,
        )
        return ReasonedGrammar(work(vocabulary, limits), vocabulary, tokens, binding)

    def _control(self, texts: tuple[str, ...]) -> dict[str, int]:
        tokenizer, control = self._model.tokenizer, self._model.control_texts
        return {text: token_id for token_id, text in marker_tokens(tokenizer, texts, control).items()}
