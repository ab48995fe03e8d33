"""Compiles the grammars of requests in threads, within a limit of CPU time, and keeps the last used ones.

A grammar is compiled on trial first, in a process that has limits of CPU time and memory and is killed there
(`grammar_trials/`), and in a thread of the leader only if it passed.

Tenants are served in rotation, and none has all threads. A thread that overruns its limit goes on to its end,
since llguidance cannot be interrupted; it keeps its slot meanwhile, so that no tenant has more than one of
them.
"""

import asyncio
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.forking.early_fork import EarlyFork
from services.worker.leader.engine_state import EngineState
from services.worker.leader.grammar_trials.grammar_trials import GrammarTrials
from services.worker.leader.intake.grammar_options import GrammarOptions
from services.worker.leader.intake.thread_work import ThreadWork
from services.worker.metrics import WorkerMetrics
from services.worker.model_files.model import Model
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.structured_grammar import check_structured
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.library_panics import guarded
from shared.errors import InvalidRequest, Overloaded, RateLimited
from shared.flow.tenant_slots import TenantSlots, TooManyWait
from shared.messages import GenerateRequest

THREADS = 2
PER_TENANT = 1
_RETRY_AFTER_S = 1.0
_WAITS = 3.0  # so many times its time limit a grammar waits: longer than another one takes on trial
_SLOWEST_KEPT = 64  # digests of grammars that overran, so that they are refused at once

Work = Callable[[TokenVocabulary, GrammarLimits], ConstraintFactory]


class GrammarCompiler:
    """Makes constraints for choices.

    Args:
        options: Limits of time and number.
        early: The trial process, if it was forked already.
    """

    def __init__(
        self,
        model: Model,
        engine: EngineState,
        options: GrammarOptions,
        metrics: WorkerMetrics,
        early: EarlyFork | None = None,
    ) -> None:
        self._model = model
        self._engine = engine
        self._options = options
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
        self._slots = TenantSlots(THREADS, per_tenant=PER_TENANT, max_waiting=options.max_waiting)
        self._compiled: OrderedDict[bytes, ConstraintFactory] = OrderedDict()
        self._overran: OrderedDict[bytes, str] = OrderedDict()  # digest -> message of the error
        self.trials = GrammarTrials(options, metrics, early)
        self._vocabulary: asyncio.Future[TokenVocabulary] | None = None
        self._vocab_size = 0
        self._running: set[asyncio.Future[Any]] = set()

    def stop_threads(self) -> None:
        """Takes no more work, and ends the trial process."""
        self.trials.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for running in list(self._running):
            running.cancel()  # its thread may end after the loop

    def check(self, request: GenerateRequest) -> None:
        """Refuses what needs no compiler to be refused.

        Raises:
            InvalidRequest: The demand is too large, or does not go with another field.
        """
        if request.structured is None:
            return
        check_structured(request.structured, self._options.limits)
        if request.sampling.ignore_eos:
            raise InvalidRequest(
                "`ignore_eos` does not go with `structured`, whose grammar says where an answer ends",
                param="ignore_eos",
            )

    async def compile(
        self, tenant: str, digest: bytes, work: Work, param: str, trial: bytes = b""
    ) -> ConstraintFactory:
        """Returns what `work` compiles in a thread, or has compiled before.

        Args:
            digest: Names what is compiled, `digest_of`.
            work: Called in the thread.
            param: The field of the request that errors name.
            trial: What is compiled on trial before; empty: nothing.

        Raises:
            InvalidRequest: It is refused, or takes too much time or memory.
            RateLimited: Too many grammars of the tenant are compiled or wait.
            Overloaded: Those of other tenants have all threads.
        """
        known = self._known(digest, param)
        if known is not None:
            return known
        vocabulary = await self._its_vocabulary()
        if trial:
            await self.trials.start(vocabulary)
        timeout_s = self._options.grammar_timeout_s
        try:
            async with asyncio.timeout(_WAITS * timeout_s):
                await self._slots.enter(tenant)
        except (TooManyWait, TimeoutError) as waited:
            raise self._busy(tenant) from waited
        if digest in self._overran or digest in self._compiled:  # an equal request was first
            self._slots.leave(tenant)
            known = self._known(digest, param)
            if known is not None:
                return known
        if trial:
            await self._try(tenant, digest, trial, vocabulary, param)
        compiling = ThreadWork(functools.partial(guarded, work, vocabulary, self._options.limits))
        try:
            compiled = await compiling.await_end(self._submit(tenant, digest, compiling), timeout_s)
        except TimeoutError as error:
            raise self._refuse(digest, self._too_slow(), param) from error
        return compiled

    async def _try(
        self, tenant: str, digest: bytes, trial: bytes, vocabulary: TokenVocabulary, param: str
    ) -> None:
        """Compiles on trial. Returns with the tenant's slot; it is left after an error.

        Raises:
            InvalidRequest: The grammar is refused, or takes too much time or memory.
            Overloaded: The trial got no CPU time.
        """
        trying = asyncio.ensure_future(self.trials.compile_on_trial(trial, vocabulary))
        self._running.add(trying)
        trying.add_done_callback(self._running.discard)
        try:
            verdict = await asyncio.shield(trying)  # a trial without its request keeps the slot to its end
        except BaseException:
            trying.add_done_callback(lambda _: self._slots.leave(tenant))
            raise
        if verdict is None or verdict.outcome in ("passed", "unclear"):
            return
        self._slots.leave(tenant)
        if verdict.outcome == "refused":
            raise InvalidRequest(verdict.message, **verdict.data)
        if verdict.outcome == "starved":
            raise Overloaded("the grammar could not be compiled now; try again", retry_after_s=_RETRY_AFTER_S)
        raise self._refuse(
            digest, self._too_slow() if verdict.outcome == "slow" else self._too_large(), param
        )

    def _refuse(self, digest: bytes, message: str, param: str) -> InvalidRequest:
        """Returns the error of a grammar that costs too much; it is refused at once from now on."""
        self._overran[digest] = message
        while len(self._overran) > _SLOWEST_KEPT:
            self._overran.popitem(last=False)
        return InvalidRequest(message, param=param)

    def _submit(
        self, tenant: str, digest: bytes, work: Callable[[], ConstraintFactory]
    ) -> asyncio.Future[ConstraintFactory]:
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._threads, work)
        except BaseException:
            self._slots.leave(tenant)
            raise

        began = loop.time()

        def ended(done: asyncio.Future[ConstraintFactory]) -> None:
            self._metrics.grammar_seconds.observe(loop.time() - began)
            self._running.discard(running)
            self._slots.leave(tenant)
            if not done.cancelled() and done.exception() is None:
                self._keep(digest, done.result())

        self._running.add(running)
        running.add_done_callback(ended)
        return running

    async def _its_vocabulary(self) -> TokenVocabulary:
        """Returns the vocabulary, which the first request makes for all, outside of its time limit."""
        model, size = self._model, self._engine.facts.vocab_size or self._model.tokenizer.vocab_size
        if self._vocabulary is None or self._vocab_size != size:
            loop = asyncio.get_running_loop()
            make = functools.partial(
                TokenVocabulary, model.tokenizer, model.eos_ids, size, model.control_texts
            )
            self._vocabulary, self._vocab_size = loop.run_in_executor(self._threads, make), size
        return await asyncio.shield(self._vocabulary)

    def kept(self, digest: bytes) -> ConstraintFactory | None:
        """Returns what was compiled before under that name."""
        kept = self._compiled.get(digest)
        if kept is not None:
            self._compiled.move_to_end(digest)
        return kept

    def _known(self, digest: bytes, param: str) -> ConstraintFactory | None:
        if digest in self._overran:
            raise InvalidRequest(self._overran[digest], param=param)
        return self.kept(digest)

    def _keep(self, digest: bytes, compiled: ConstraintFactory) -> None:
        self._overran.pop(digest, None)
        self._compiled[digest] = compiled
        while len(self._compiled) > self._options.cached:
            self._compiled.popitem(last=False)

    def _too_slow(self) -> str:
        return (
            f"the grammar was not compiled within {self._options.grammar_timeout_s:g} s of CPU time "
            "(RYZ_GRAMMAR_TIMEOUT_S): make it smaller"
        )

    def _too_large(self) -> str:
        mib = self._options.trial_bytes / 2**20
        return f"the grammar was not compiled within {mib:g} MiB of memory: make it smaller"

    def _busy(self, tenant: str) -> RateLimited | Overloaded:
        """Returns the error of a request without a thread: its tenant's own grammars have it, or others'."""
        if self._slots.holds(tenant):
            return RateLimited(
                "too many grammars of this tenant are being compiled; try again", retry_after_s=_RETRY_AFTER_S
            )
        return Overloaded("too many grammars are being compiled; try again", retry_after_s=_RETRY_AFTER_S)


def digest_of(*parts: bytes) -> bytes:
    """Returns a name for what is compiled from these parts."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
