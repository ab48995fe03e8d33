"""Prompts to tokens, within limits of time and length, so that no text and no template holds the leader up.

Short texts are tokenized at once; long ones, and those that keep the template busy, in one of a few threads,
beside which the event loop goes on. Tenants go by turns there, and none has all threads. The length of a text
does not tell how long it takes: a tenant whose short ones took long has all in threads for the rest of the
second.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

from services.worker.domain.generation.context_overflow import too_long
from services.worker.domain.generation.turn_context import TurnContext
from services.worker.metrics import WorkerMetrics
from services.worker.model_dir import Model
from services.worker.text.control_tokens import ControlTokenGuard
from services.worker.text.template_guard import TemplateOverran
from shared.codec import unpack_tokens
from shared.errors import DeadlineExceeded, InvalidRequest
from shared.messages import GenerateRequest
from shared.tenant_places import TenantPlaces

log = structlog.get_logger(__name__)
T = TypeVar("T")

INLINE_CHARS = 2048  # longer texts are tokenized in a thread; a text that is not ASCII counts twice
INLINE_MESSAGES = 64
INLINE_TEMPLATE_S = 0.02  # far more than any template takes for that
THREADS = 3
PER_TENANT = 2  # one thread fewer: another tenant's prompt never waits for those of one alone
INLINE_S = 0.05  # a tenant's, in a second: beyond it all of its prompts are tokenized in threads
DEAR_S = 0.00025  # what takes less is not counted: a thread for it would cost the event loop as much
INLINE_RESUMED = 256  # tokens of all choices; the text before a longer resume point is made in a thread
INLINE_COPIED = 32_768  # tokens of a prompt, once for each choice
COUNTED_TOKENS = 32_768  # a prompt that may have fewer is counted, so that its sender gets the exact number
_PROMPT = "the prompt was not tokenized"


class PromptTokenizer:
    """Makes the tokens of prompts.

    timeout_s: for one prompt, in a thread. context_length: of the engine that runs now, in tokens.
    clock: in seconds.
    """

    def __init__(
        self,
        model: Model,
        metrics: WorkerMetrics,
        context_length: Callable[[], int],
        timeout_s: float = 10.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._metrics = metrics
        self._context_length = context_length
        self._timeout_s = timeout_s
        self._control_tokens = ControlTokenGuard(model.tokenizer, model.template) if model.template else None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")
        self._places = TenantPlaces(THREADS, per_tenant=PER_TENANT)
        self._clock = clock
        self._second_ends = 0.0
        self._spent: dict[str, float] = {}  # seconds of each tenant's dear prompts, in this second
        self._running: set[asyncio.Future[Any]] = set()

    def stop_threads(self) -> None:
        """Takes no more; a thread that is busy ends with its prompt."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for running in list(self._running):
            running.cancel()  # its thread may end after the loop

    def is_short(self, request: GenerateRequest) -> bool:
        """Whether tokenizing takes so little time that a thread would cost more, and making choices, too."""
        if is_long(request, len(request.prompt_token_ids or b"") // 4):
            return False
        messages = request.messages or ()
        if len(messages) > INLINE_MESSAGES:
            return False
        prompt = request.prompt or ""
        chars = len(prompt) if prompt.isascii() else 2 * len(prompt)
        for message in messages:
            text = message.content
            chars += len(message.name) + (len(text) if text.isascii() else 2 * len(text))
        return chars <= INLINE_CHARS

    def tokenize_inline(self, request: GenerateRequest, turn: TurnContext | None) -> list[int] | None:
        """The tokens of a short prompt; None: it needs a thread, because its template takes so long, or
        because the tenant's prompts have taken so long in this second.
        """
        began = self._clock()
        if began >= self._second_ends:
            self._second_ends = began + 1.0
            self._spent.clear()
        spent = self._spent.get(request.tenant, 0.0)
        if spent >= INLINE_S:
            return None
        try:
            return self._tokens(request, turn, INLINE_TEMPLATE_S)
        except TemplateOverran:
            log.warning("the chat template is slow", request_id=request.request_id)
            return None
        finally:
            took = self._clock() - began
            if took >= DEAR_S:
                self._spent[request.tenant] = spent + took

    async def tokenize_in_thread(self, request: GenerateRequest, turn: TurnContext | None) -> list[int]:
        """The tokens of any prompt. Raises `DeadlineExceeded` when it takes too long, the wait included."""
        work = functools.partial(self._tokens, request, turn, self._timeout_s)
        try:
            return await self.run_in_thread(request.tenant, work, _PROMPT)
        except TemplateOverran as error:
            raise self._too_slow(_PROMPT) from error

    async def run_in_thread(self, tenant: str, work: Callable[[], T], failure: str) -> T:
        """What the work of a tenant returns, done in a thread in the tenant's turn.

        failure: what has not happened in time, as the beginning of a sentence.

        Raises:
            DeadlineExceeded: it takes too long, the wait included.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._places.enter(tenant)
                return await asyncio.shield(self._submit_work(tenant, work))
        except TimeoutError as error:
            raise self._too_slow(failure) from error

    def _too_slow(self, failure: str) -> DeadlineExceeded:
        self._metrics.slow_prompts.inc()
        return DeadlineExceeded(
            f"{failure} within {self._timeout_s:g} s (RYZ_TOKENIZE_TIMEOUT_S): it is "
            "too long, the group is too busy with others, or the model's chat template is too slow",
            reason="tokenizing",
        )

    def _submit_work(self, tenant: str, work: Callable[[], T]) -> asyncio.Future[T]:
        """Puts work into a thread. The tenant's place is free when the thread is, whoever still waits."""
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._threads, work)
        except BaseException:
            self._places.leave(tenant)
            raise

        def ended(_: object) -> None:
            self._running.discard(running)
            self._places.leave(tenant)

        self._running.add(running)
        running.add_done_callback(ended)
        return running

    def _tokens(self, request: GenerateRequest, turn: TurnContext | None, limit_s: float) -> list[int]:
        """The tokens of a prompt; `limit_s` is the template's.

        Raises:
            ContextLengthExceeded: before the text is tokenized, if that is sure by its length.
            InvalidRequest: there are no tokens, or the template refuses the messages.
            TemplateOverran: the template takes longer.
        """
        tokenizer = self._model.tokenizer
        if request.messages is not None:
            assert self._control_tokens is not None
            messages = turn.messages if turn else request.messages
            if len(messages) > (holds := self._context_length()):  # each has a token at least
                raise too_long(self._model.name, request, turn, len(messages), holds, exact=False)
            pieces = self._control_tokens.render_prompt(messages, limit_s)
            self._check_length(request, turn, sum(map(tokenizer.least_tokens, pieces)))
            tokens, param = self._control_tokens.encode_prompt(pieces), "messages"
        elif request.prompt is not None:
            self._check_length(request, turn, tokenizer.least_tokens(request.prompt))
            tokens, param = tokenizer.encode(request.prompt, add_special_tokens=True), "prompt"
        else:
            packed = request.prompt_token_ids or b""
            self._check_length(request, turn, len(packed) // 4)
            tokens, param = unpack_tokens(packed), "prompt_token_ids"
        if not tokens:
            raise InvalidRequest(f"{param}: the prompt has no tokens", param=param)
        return tokens

    def _check_length(self, request: GenerateRequest, turn: TurnContext | None, at_least: int) -> None:
        if at_least > max(COUNTED_TOKENS, holds := self._context_length()):
            raise too_long(self._model.name, request, turn, at_least, holds, exact=False)


def is_long(request: GenerateRequest, num_tokens: int) -> bool:
    """Whether making the choices of a prompt with so many tokens takes so long that it needs a thread."""
    resume = request.resume
    if resume is not None and sum(map(len, resume.token_ids)) > 4 * INLINE_RESUMED:
        return True
    return num_tokens * request.sampling.n > INLINE_COPIED
