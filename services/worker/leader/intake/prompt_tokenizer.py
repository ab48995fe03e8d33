"""Makes tokens of prompts, within limits of time and length, so that none blocks the leader.

Short texts are tokenized inline; long ones, and those with a slow template, in a thread
(`tokenizer_threads.py`). A short text may take long all the same: a tenant whose inline prompts took too much
CPU time gets threads for all of its prompts for the rest of the second. By the wall clock, each pause that
the kernel makes for other processes would count as well.
"""

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from services.worker.domain.generation.context_overflow import too_long
from services.worker.domain.generation.conversation_cut import first_that_fits, shorter_conversations
from services.worker.domain.generation.turn_context import TurnContext
from services.worker.leader.intake.continued_prompts import ContinuedPrompt, ContinuedPrompts
from services.worker.leader.intake.tokenizer_threads import TokenizerThreads
from services.worker.leader.intake.tool_checks import check_tool_results, offered_tools, template_input
from services.worker.metrics import WorkerMetrics
from services.worker.model_files.model import Model
from services.worker.text.control_tokens import ControlTokenGuard
from services.worker.text.library_panics import guarded
from services.worker.text.template_guard import TemplateOverran
from shared.codec import unpack_tokens
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, GenerateRequest

log = structlog.get_logger(__name__)

INLINE_CHARS = 2048  # longer texts are tokenized in a thread; a text that is not ASCII counts twice
INLINE_MESSAGES = 64
INLINE_TEMPLATE_S = 0.02  # far more than any template takes for that
INLINE_S = 0.05  # CPU time of inline prompts of a tenant in a second; beyond it its prompts get threads
# Prompts that take less are not counted: in a thread they would wait milliseconds for the interpreter's lock.
# A short question takes 0.1 ms, on a slow or busy machine 0.5 ms: with 0.25 ms here that one used threads for
# most of each second.
DEAR_S = 0.001
# tokens of all choices; the text before a longer resume point is made in a thread. A thread would take the
# moved requests of a lost group in rotation: 10 ms of their pause, where a token takes half a microsecond
# here
INLINE_RESUMED = 768
INLINE_COPIED = 32_768  # tokens of a prompt, once for each choice
COUNTED_TOKENS = 32_768  # a prompt that may have fewer is counted, so that the error has the exact number
_PROMPT = "the prompt was not tokenized"


class PromptForm(NamedTuple):
    """What belongs to a prompt beside its own text.

    Attributes:
        special_tokens: The tokenizer's own tokens around a text.
        generation_prompt: The beginning of the assistant's next message after a conversation.
    """

    special_tokens: bool = True
    generation_prompt: bool = True


GENERATION = PromptForm()


class PromptTokenizer:
    """Makes the tokens of prompts.

    Args:
        context_length: Returns the tokens that the running engine takes.
        timeout_s: For one prompt, in a thread.
        clock: Returns seconds.
        cpu_clock: Returns the CPU seconds of the calling thread.
        vocab_size: Returns the number of the running engine's tokens; 0: not known.
        can_force: See `ContinuedPrompts`.

    Attributes:
        threads: Where long prompts are tokenized; also for other long work on texts and tokens.
    """

    def __init__(
        self,
        model: Model,
        metrics: WorkerMetrics,
        context_length: Callable[[], int],
        timeout_s: float = 10.0,
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
        vocab_size: Callable[[], int] = lambda: 0,
        can_force: Callable[[], bool] = lambda: True,
    ) -> None:
        self._model = model
        self._context_length = context_length
        self._timeout_s = timeout_s
        self._control_tokens = ControlTokenGuard(model.tokenizer, model.template) if model.template else None
        guard = self._control_tokens
        self._continued = ContinuedPrompts(model, guard, vocab_size, can_force) if guard else None
        self.threads = TokenizerThreads(timeout_s, metrics.slow_prompts)
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._second_ends = 0.0
        self._spent: dict[str, float] = {}  # CPU seconds of each tenant's dear prompts, in this second

    def is_short(self, request: GenerateRequest) -> bool:
        """Returns whether tokenizing and making choices take less time than a thread would cost."""
        if request.continues or is_long(request, len(request.prompt_token_ids or b"") // 4):
            return False
        messages = request.messages or ()
        if len(messages) > INLINE_MESSAGES:
            return False
        prompt = request.prompt or ""
        chars = len(prompt) if prompt.isascii() else 2 * len(prompt)
        for message in messages:
            text = message.content
            chars += len(message.name) + (len(text) if text.isascii() else 2 * len(text))
            chars += len(message.reasoning) + sum(len(call.arguments) for call in message.tool_calls)
        chars += sum(len(tool.description) + len(tool.parameters) for tool in offered_tools(request))
        chars += len(request.template.variables) if request.template is not None else 0
        return chars <= INLINE_CHARS

    def tokenize_inline(
        self, request: GenerateRequest, turn: TurnContext | None, form: PromptForm = GENERATION
    ) -> list[int] | None:
        """Returns the tokens of a short prompt.

        Returns:
            The tokens. None if it needs a thread: its template takes too long, or the tenant's prompts have
            taken too long in this second.
        """
        now = self._clock()
        if now >= self._second_ends:
            self._second_ends = now + 1.0
            self._spent.clear()
        spent = self._spent.get(request.party_or_tenant, 0.0)
        if spent >= INLINE_S:
            return None
        began = self._cpu_clock()
        try:
            return guarded(self._tokens, request, turn, form, INLINE_TEMPLATE_S)
        except TemplateOverran:
            log.warning("the chat template is slow")
            return None
        finally:
            took = self._cpu_clock() - began
            if took >= DEAR_S:
                self._spent[request.party_or_tenant] = spent + took

    async def tokenize_in_thread(
        self, request: GenerateRequest, turn: TurnContext | None, form: PromptForm = GENERATION
    ) -> list[int]:
        """Returns the tokens of any prompt. Raises `DeadlineExceeded` when it takes too long."""
        work = functools.partial(self._tokens, request, turn, form, self._timeout_s)
        try:
            return await self.threads.run_in_thread(request.party_or_tenant, work, _PROMPT)
        except TemplateOverran as error:
            raise self.threads.too_slow(_PROMPT) from error

    async def tokenize_continued(self, request: GenerateRequest, turn: TurnContext | None) -> ContinuedPrompt:
        """Returns the prompt of a request that `continues`; see `tokenize_in_thread`."""
        work = functools.partial(self._continued_prompt, request, turn, self._timeout_s)
        try:
            return await self.threads.run_in_thread(request.party_or_tenant, work, _PROMPT)
        except TemplateOverran as error:
            raise self.threads.too_slow(_PROMPT) from error

    def _tokens(
        self, request: GenerateRequest, turn: TurnContext | None, form: PromptForm, limit_s: float
    ) -> list[int]:
        """Returns the tokens of a prompt; `limit_s` is for the template.

        Raises:
            ContextLengthExceeded: The prompt is too long for sure; raised before it is tokenized.
            InvalidRequest: There are no tokens, or the template refuses the messages.
            TemplateOverran: The template takes longer than `limit_s`.
        """
        tokenizer = self._model.tokenizer
        if request.messages is not None:
            messages, param = turn.messages if turn else request.messages, "messages"
            generation_prompt = form.generation_prompt and request.generation_prompt
            tokens = self._tokens_of(request, turn, messages, limit_s, generation_prompt=generation_prompt)
        elif request.prompt is not None:
            self._check_length(request, turn, tokenizer.least_tokens(request.prompt))
            tokens, param = tokenizer.encode(request.prompt, add_special_tokens=form.special_tokens), "prompt"
        else:
            packed = request.prompt_token_ids or b""
            self._check_length(request, turn, len(packed) // 4)
            tokens, param = unpack_tokens(packed), "prompt_token_ids"
        if not tokens:
            raise InvalidRequest(f"{param}: the prompt has no tokens", param=param)
        return tokens[-request.truncate_prompt_tokens :]  # 0: all

    def _tokens_of(
        self,
        request: GenerateRequest,
        turn: TurnContext | None,
        messages: list[ChatMessage],
        limit_s: float,
        *,
        generation_prompt: bool,
    ) -> list[int]:
        """Returns the tokens of messages; see `_tokens`."""
        assert self._control_tokens is not None
        holds = self._context_length()
        check_tool_results(messages)
        if request.truncation == "auto":
            messages = self._cut_conversation(request, messages, limit_s, generation_prompt=generation_prompt)
        if len(messages) > holds and not request.truncate_prompt_tokens:  # each has a token at least
            full = self._model.context_length
            raise too_long(self._model.name, request, turn, len(messages), holds, full=full, exact=False)
        pieces = self._render(request, messages, limit_s, generation_prompt=generation_prompt)
        self._check_length(request, turn, sum(map(self._model.tokenizer.least_tokens, pieces)))
        return self._control_tokens.encode_prompt(pieces)

    def _continued_prompt(
        self, request: GenerateRequest, turn: TurnContext | None, limit_s: float
    ) -> ContinuedPrompt:
        assert self._continued is not None
        messages = turn.messages if turn else request.messages or []
        if len(messages) < 2:
            raise InvalidRequest(
                "there must be a message before the answer that is continued", param="messages"
            )
        last = messages[-1]
        begun = (last.content, last.reasoning, *(call.arguments for call in last.tool_calls))
        self._check_length(request, turn, sum(map(self._model.tokenizer.least_tokens, begun)))
        before = self._tokens_of(request, turn, messages[:-1], limit_s, generation_prompt=True)
        return self._continued.continued(request, before, last)

    def _render(
        self,
        request: GenerateRequest,
        messages: list[ChatMessage],
        limit_s: float,
        *,
        generation_prompt: bool,
    ) -> list[str]:
        """The pieces of text of a conversation; see `ControlTokenGuard.render_prompt`."""
        assert self._control_tokens is not None
        assert self._model.template is not None
        given = template_input(request, self._model.template)
        return self._control_tokens.render_prompt(
            messages, limit_s, given, generation_prompt=generation_prompt
        )

    def _cut_conversation(
        self,
        request: GenerateRequest,
        messages: list[ChatMessage],
        limit_s: float,
        *,
        generation_prompt: bool,
    ) -> list[ChatMessage]:
        """The part of a conversation that fits with its answer, the whole one if that fits."""
        room = self._context_length() - max(1, request.sampling.max_tokens)

        def fits(part: list[ChatMessage]) -> bool:
            assert self._control_tokens is not None
            if len(part) > room:
                return False
            pieces = self._render(request, part, limit_s, generation_prompt=generation_prompt)
            if sum(map(self._model.tokenizer.least_tokens, pieces)) > room:
                return False
            return len(self._control_tokens.encode_prompt(pieces)) <= room

        if fits(messages):
            return messages
        # a quarter of the context, if a token has four characters
        return first_that_fits(shorter_conversations(messages, self._context_length()), fits)

    def _check_length(self, request: GenerateRequest, turn: TurnContext | None, at_least: int) -> None:
        if request.truncate_prompt_tokens:
            return
        if at_least > max(COUNTED_TOKENS, holds := self._context_length()):
            full = self._model.context_length
            raise too_long(self._model.name, request, turn, at_least, holds, full=full, exact=False)


def is_long(request: GenerateRequest, num_tokens: int) -> bool:
    """Returns whether making the choices of a prompt with so many tokens needs a thread."""
    resume = request.resume
    if resume is not None and sum(map(len, resume.token_ids)) > 4 * INLINE_RESUMED:
        return True
    return num_tokens * request.sampling.n > INLINE_COPIED
