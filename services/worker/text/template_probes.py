"""Finds the shape in which a chat template takes messages, by rendering conversations of markers.

Each conversation is rendered in one shape after another, the usual one first, until all markers are in the
prompt. What no shape brings into the prompt is a finding: requests that need it are refused.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from services.worker.text.template_guard import TemplateOverran
from services.worker.text.template_shape import TemplateShape
from shared.messages import ChatMessage, ToolCall, ToolDefinition

Render = Callable[[Sequence[ChatMessage], Sequence[ToolDefinition], TemplateShape], str]
USER, ANSWER, SECOND, SYSTEM, LATER = "zquserqz", "zqanswerqz", "zqsecondqz", "zqsystemqz", "zqlaterqz"
TOOL, CALL, KEY, VALUE, RESULT = "zqtoolqz", "zqcallqz", "zqkeyqz", "zqvalueqz", "zqresultqz"
BESIDE, OTHER_VALUE, OTHER_RESULT = "zqbesideqz", "zqothervalueqz", "zqotherresultqz"
_WHAT = {
    USER: "the first message of the user", SECOND: "messages of the user", ANSWER: "answers",
    SYSTEM: "system messages", LATER: "system messages after the first one",
    TOOL: "tools", CALL: "the names of calls",
    KEY: "the arguments of calls", VALUE: "the arguments of calls", RESULT: "the results of calls",
    BESIDE: "the text beside a call",
    OTHER_VALUE: "the second of two calls", OTHER_RESULT: "the second of two results",
}  # fmt: skip
_PARAMETERS = json.dumps({"type": "object", "properties": {KEY: {"type": "string"}}})
_TOOLS = [ToolDefinition(name=TOOL, description="does something", parameters=_PARAMETERS)]


class TemplateRefused(Exception):
    """The template raised an error."""


@dataclass(frozen=True, slots=True)
class ProbedTemplate:
    """What is known of a template.

    Attributes:
        shape: In which it takes messages.
        findings: What is unusual about it, in sentences for `ryz models show`.
        loses_text: Some conversations would lose text, so that each one is checked by markers.
        too_slow: It has not rendered the markers within its limits.
    """

    shape: TemplateShape
    findings: tuple[str, ...]
    loses_text: bool
    too_slow: bool = False


@dataclass(frozen=True, slots=True)
class _Trial:
    """A conversation in one shape.

    Attributes:
        lost: Markers that are missing in the prompt; all if it was refused.
        flaws: How badly arguments are written; 0: well.
        error: Of the template, if it refused.
    """

    shape: TemplateShape
    lost: frozenset[str]
    flaws: int = 0
    error: str | None = None


def probe_template(render: Render, *, mentions_tools: bool, needs_tools: bool = False) -> ProbedTemplate:
    """Finds the shape of a template.

    Args:
        render: Renders messages and tools in a shape; raises `TemplateRefused` and `TemplateOverran`.
        mentions_tools: The template has a variable for tools.
        needs_tools: The template is only for requests with tools.
    """
    probes = _Probes(render, needs_tools=needs_tools)
    try:
        probes.find_content()
        if probes.usable:
            probes.find_system()
            probes.find_tools(mentions_tools=mentions_tools)
    except (TemplateOverran, MemoryError):
        shape = replace(probes.shape, own_tools=mentions_tools)
        return ProbedTemplate(
            shape, (*probes.findings, "it takes too much time or memory to be checked"), False, too_slow=True
        )
    return ProbedTemplate(probes.shape, tuple(probes.findings), probes.loses_text)


class _Probes:
    def __init__(self, render: Render, *, needs_tools: bool) -> None:
        self.shape = TemplateShape()
        self.findings: list[str] = []
        self.loses_text = False
        self.usable = True
        self._render = render
        self._needs_tools = needs_tools

    def find_content(self) -> None:
        """Finds whether messages of user and assistant are texts or parts."""
        said = [_user(USER), ChatMessage(role="assistant", content=ANSWER), _user(SECOND)]
        sets = [
            frozenset[str](),
            frozenset({"user"}),
            frozenset({"assistant"}),
            frozenset({"user", "assistant"}),
        ]
        trial = self._best(said, {USER, ANSWER, SECOND}, [replace(self.shape, parts=parts) for parts in sets])
        if trial.error is not None:
            alone = self._best(said[:1], {USER}, [replace(self.shape, parts=parts) for parts in sets[:2]])
            self.findings.append(f"it refuses a conversation of user and assistant: {trial.error}")
            trial, self.usable = alone, alone.error is None
        self.shape = trial.shape
        self._note_lost(trial)

    def find_system(self) -> None:
        """Finds whether system messages are texts or parts, and where they may be."""
        shapes = [
            replace(self.shape, parts=self.shape.parts | more) for more in (frozenset[str](), {"system"})
        ]
        trial = self._best([_system(SYSTEM), _user(USER)], {SYSTEM, USER}, shapes)
        if trial.error is not None:
            self.shape = replace(self.shape, system="refused")
            self.findings.append(
                "it refuses system messages; tools are told in the first message of the user"
            )
            return
        if SYSTEM in trial.lost:
            self.shape = replace(self.shape, system="none")
            self.findings.append("it drops system messages: they become part of the next message of the user")
            return
        self.shape = trial.shape
        if self.shape.parts:
            self.findings.append(f"it takes parts as the content of: {', '.join(sorted(self.shape.parts))}")
        late = [_user(USER), ChatMessage(role="assistant", content=ANSWER), _system(LATER), _user(SECOND)]
        alone = self._best(late, {USER, ANSWER, LATER, SECOND}, [self.shape])
        both = self._best([_system(SYSTEM), *late], {SYSTEM, USER, ANSWER, LATER, SECOND}, [self.shape])
        if both.error is None and both.lost & {SYSTEM, LATER}:
            only_first = alone.error is None and not alone.lost
            self.shape = replace(self.shape, system="first" if only_first else "beginning")
            self.findings.append(
                f"it drops system messages {'after' if only_first else 'that are not'} the first "
                f"{'one' if only_first else 'message'}: they become part of the next message of the user"
            )

    def find_tools(self, *, mentions_tools: bool) -> None:
        """Finds how calls are written, or whether tools have to be described in words."""
        said = [
            _user(USER), _calling("", VALUE), _result("call00001", RESULT),
            ChatMessage(role="assistant", content=ANSWER), _user(SECOND),
        ]  # fmt: skip
        wanted = {USER, TOOL, CALL, KEY, VALUE, RESULT, ANSWER, SECOND}
        if mentions_tools:
            parts = (self.shape.parts, self.shape.parts | {"tool"})
            shapes = [
                replace(self.shape, own_tools=True, parts=some, arguments_as_text=as_text, null_content=null)
                for some, as_text, null in product(parts, (False, True), (True, False))
            ]
            own = self._best(said, wanted, shapes)
            if not own.lost:
                self.shape = own.shape
                if own.shape.arguments_as_text:
                    self.findings.append("it takes the arguments of calls as text")
            else:
                problem = (
                    f"refuses calls: {own.error}" if own.error is not None else f"drops {_what(own.lost)}"
                )
                self.findings.append(f"it {problem}; tools are told in words")
        if not self.shape.own_tools:
            in_words = self._best(said, wanted, [self.shape])
            if in_words.error is not None:
                self.findings.append(f"it refuses a conversation with calls: {in_words.error}")
                return
            self._note_lost(in_words)
        self._find_other_calls(said)

    def _find_other_calls(self, said: Sequence[ChatMessage]) -> None:
        beside = [said[0], _calling(BESIDE, VALUE), *said[2:]]
        shapes = [self.shape, replace(self.shape, calls_apart=True)]
        trial = self._best(beside, {BESIDE, CALL, VALUE, RESULT, SECOND}, shapes)
        if not trial.lost:
            self.shape = trial.shape
        self._note_lost(trial)
        result, other = _result("call00001", RESULT), _result("call00002", OTHER_RESULT)
        two = [said[0], _calling("", VALUE, OTHER_VALUE), result, other, *said[3:]]
        shapes = [self.shape, replace(self.shape, single_calls=True)]
        trial = self._best(two, {CALL, VALUE, OTHER_VALUE, RESULT, OTHER_RESULT}, shapes)
        if not trial.lost:
            self.shape = trial.shape
        self._note_lost(trial)
        self._note_lost(self._best(said[:3], {USER, TOOL, CALL, VALUE, RESULT}, [self.shape]))

    def _note_lost(self, trial: _Trial) -> None:
        """Notes what is lost without an error."""
        if trial.error is None and trial.lost:
            self.loses_text = True
            finding = f"it drops {_what(trial.lost)}: requests with that are refused"
            if finding not in self.findings:
                self.findings.append(finding)

    def _best(self, said: Sequence[ChatMessage], wanted: set[str], shapes: Iterable[TemplateShape]) -> _Trial:
        """Returns the trial that loses least; of equal ones the first."""
        best: _Trial | None = None
        for shape in shapes:
            trial = self._try(said, wanted, shape)
            if best is None or _badness(trial) < _badness(best):
                best = trial
            if not _badness(best)[1] and not best.flaws:
                break
        assert best is not None
        return best

    def _try(self, said: Sequence[ChatMessage], wanted: set[str], shape: TemplateShape) -> _Trial:
        try:
            with_tools = self._needs_tools or CALL in wanted
            prompt = self._render(said, _TOOLS if with_tools else (), shape)
        except TemplateRefused as error:
            return _Trial(shape, frozenset(wanted), error=str(error))
        lost = frozenset(marker for marker in wanted if marker not in prompt)
        flaws = (
            4 * (shape.null_content and "None" in prompt)
            + 2 * (f'\\"{KEY}' in prompt)
            + (f"'{KEY}'" in prompt)
        )
        return _Trial(shape, lost, flaws)


def _badness(trial: _Trial) -> tuple[bool, int, int]:
    return trial.error is not None, len(trial.lost), trial.flaws


def _what(lost: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(what for marker, what in _WHAT.items() if marker in lost))


def _user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def _system(text: str) -> ChatMessage:
    return ChatMessage(role="system", content=text)


def _calling(text: str, *values: str) -> ChatMessage:
    calls = [
        ToolCall(call_id=f"call0000{number}", name=CALL, arguments=json.dumps({KEY: value}))
        for number, value in enumerate(values, 1)
    ]
    return ChatMessage(role="assistant", content=text, tool_calls=calls)


def _result(call_id: str, text: str) -> ChatMessage:
    return ChatMessage(role="tool", content=text, tool_call_id=call_id)
