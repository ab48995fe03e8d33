"""Decides whether the leader may compile a grammar: it was compiled on trial before, within limits.

The trial process is started by the first grammar, and again if it ends. Where there is none, grammars are
compiled without a trial, since a fault of the trial must not refuse a request.
"""

import asyncio
import sys
import time

import structlog

from services.worker.forking.early_fork import EarlyFork
from services.worker.leader.grammar_trials.trial_connection import TrialConnection, TrialProcessEnded
from services.worker.leader.grammar_trials.trial_messages import TrialResult, TrialSetup
from services.worker.leader.intake.grammar_options import GrammarOptions
from services.worker.metrics import WorkerMetrics
from services.worker.rank_protocol.run_config import STRETCH
from services.worker.text.grammars.token_vocabulary import TokenVocabulary

log = structlog.get_logger(__name__)
_ATTEMPTS = 2
_START_S = 30.0  # imports and the vocabulary: half a second, on a busy machine some seconds
_GRACE_S = 5.0  # for the process to end a trial itself
_PAUSE_S = 10.0  # after a failed start


class GrammarTrials:
    """Trials of one leader."""

    def __init__(
        self, options: GrammarOptions, metrics: WorkerMetrics, early: EarlyFork | None = None
    ) -> None:
        self._early = early
        self._options = options
        self._metrics = metrics
        self._connection: TrialConnection | None = None
        self._vocabulary: TokenVocabulary | None = None  # that the process has
        self._starting = asyncio.Lock()
        self._not_before_s = 0.0
        self._stopped = False
        self._starts: set[asyncio.Future[TrialConnection | None]] = set()

    @property
    def pid(self) -> int:
        """Process id of the trial process; 0 if there is none."""
        return 0 if self._connection is None else self._connection.pid

    async def start(self, vocabulary: TokenVocabulary) -> None:
        """Starts the process if there is none, so that no trial waits for that within a time limit."""
        starting = asyncio.ensure_future(self._connected(vocabulary))
        self._starts.add(starting)
        starting.add_done_callback(self._forget_start)
        await asyncio.wait({starting})  # it goes on if this is cancelled: others may wait for it, too

    async def compile_on_trial(self, form: bytes, vocabulary: TokenVocabulary) -> TrialResult | None:
        """Returns what came of a trial; None if there can be none.

        Args:
            form: An encoded `AnswerForm`.
        """
        try:
            verdict = await self._attempt(form, vocabulary)
        except Exception:  # whatever it is, it must not refuse the request
            log.exception("a grammar could not be compiled on trial")
            verdict = None
        outcome = "unavailable" if verdict is None else verdict.outcome
        self._metrics.grammar_trials.labels(outcome).inc()
        return verdict

    def stop(self) -> None:
        """Ends the process; there are no more trials."""
        self._stopped = True
        for starting in self._starts:
            starting.cancel()
        if self._connection is not None:
            self._connection.end()
            self._connection = None

    def _forget_start(self, starting: "asyncio.Future[TrialConnection | None]") -> None:
        self._starts.discard(starting)
        if not starting.cancelled():
            starting.exception()  # the trial meets it again

    async def _attempt(self, form: bytes, vocabulary: TokenVocabulary) -> TrialResult | None:
        for _ in range(_ATTEMPTS):
            connection = await self._connected(vocabulary)
            if connection is None:
                return None
            try:
                async with asyncio.timeout(STRETCH * self._options.grammar_timeout_s + _GRACE_S):
                    return await connection.compile_on_trial(form)
            except TrialProcessEnded:
                log.warning("the trial process of grammars ended", pid=connection.pid)
            except TimeoutError:  # it stands still
                connection.end()
                return TrialResult(0, "starved")
        log.warning("grammars are compiled without a trial for a while", seconds=_PAUSE_S)
        self._not_before_s = time.monotonic() + _PAUSE_S
        return None

    async def _connected(self, vocabulary: TokenVocabulary) -> TrialConnection | None:
        async with self._starting:
            known = self._connection
            if known is not None and not known.gone and self._vocabulary is vocabulary:
                return known
            if self._stopped or sys.platform != "linux" or time.monotonic() < self._not_before_s:
                return None
            if known is not None:
                known.end()
                self._connection = None
            try:
                early, self._early = self._early, None
                made = self._connection = TrialConnection(early)
                async with asyncio.timeout(_START_S):
                    await made.begin(self._setup(vocabulary))
            except (OSError, TrialProcessEnded) as error:  # a TimeoutError is an OSError
                if self._connection is not None:
                    self._connection.end()
                    self._connection = None
                log.warning("the trial process of grammars could not be started", error=repr(error))
                self._not_before_s = time.monotonic() + _PAUSE_S
                return None
            self._vocabulary = vocabulary
            return made

    def _setup(self, vocabulary: TokenVocabulary) -> TrialSetup:
        return TrialSetup(
            tokens=vocabulary.tokens,
            special_ids=vocabulary.special_ids,
            ends=sorted(vocabulary.ends),
            vocab_size=vocabulary.vocab_size,
            limits=self._options.limits,
            cpu_s=self._options.grammar_timeout_s,
            memory_bytes=self._options.trial_bytes,
        )
