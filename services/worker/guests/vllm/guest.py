"""vLLM behind the guest port: its process, the sequences that it has, and whether it still answers.

`vllm_child/` is the other end. vLLM batches and keeps KV by itself; whatever ends its process, or one of
those that it has started, is one failure, after which another process is started.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from services.worker.guests.kv_events.own_vllm import OwnVllmKV
from services.worker.guests.port import Ability, GuestFacts, GuestPart, GuestSequence
from services.worker.guests.vllm.arguments import engine_arguments
from services.worker.guests.vllm.options import VllmOptions
from services.worker.guests.vllm.process import VllmProcess
from services.worker.guests.vllm.sampling import vllm_sampling, why_refused
from services.worker.guests.vllm.vllm_child.messages import (
    CloseSequence,
    EngineEnded,
    EngineReady,
    FromChild,
    Generated,
    OpenSequence,
    Ping,
    SequencePart,
    StartEngine,
)
from services.worker.guests.vllm.weights_identity import weights_identity
from services.worker.rank_protocol.failures import EngineFailed, EngineRefused
from services.worker.rank_protocol.plan import Alternative, Sampled
from shared.guests.needs import guest_fingerprint

_PING_S = 1.0
_ABILITIES: frozenset[Ability] = frozenset(
    (
        "continuation",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "min_p",
        "min_tokens",
        "penalties",
        "repetition_penalty",
        "seed",
        "token_ids_in",
        "token_ids_out",
        "top_k",
    )
)
_GRAMMARS: frozenset[Ability] = frozenset(("choice", "gbnf", "grammar", "json_schema"))
_NOT_WITH_SPECULATION: frozenset[Ability] = frozenset(("logit_bias", "min_p"))


class VllmGuest:
    """See `Guest`.

    Args:
        options: What is started, with which limits.
        ping_s: Time between two pings.
        kv: Follows its KV cache; None: it publishes no events, or they are for others.
    """

    def __init__(self, options: VllmOptions, ping_s: float = _PING_S, kv: OwnVllmKV | None = None) -> None:
        self._options = options
        self._model = Path(options.model).resolve()
        self._ping_s = ping_s
        self._kv = kv
        self._on_part: Callable[[GuestPart], None] = lambda part: None
        self._on_failure: Callable[[str], None] = lambda reason: None
        self._process: VllmProcess | None = None
        self._ready: EngineReady | None = None
        self._starting: asyncio.Future[EngineReady] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._open: set[int] = set()
        self._pinged = self._answered = 0
        self._state = "stopped"
        self._lost = ""  # why, once it is

    def watch(self, on_part: Callable[[GuestPart], None], on_failure: Callable[[str], None]) -> None:
        """See `Guest`."""
        self._on_part, self._on_failure = on_part, on_failure

    async def start(self) -> GuestFacts:
        """See `Guest`."""
        await self.stop()
        if not self._options.vllm_python:
            raise EngineRefused("set RYZ_VLLM_PYTHON to the Python interpreter of an environment with vLLM")
        try:
            shares = self._options.prefix_sharing != "off"
            arguments = engine_arguments(self._options.vllm_args, shares=shares)
        except ValueError as error:
            raise EngineRefused(f"RYZ_VLLM_ARGS {error}") from error
        if self._kv is not None:
            arguments = self._kv.prepare(arguments)
        self._state, self._lost = "starting", ""
        try:
            self._ready = ready = await self._start_process(arguments)
            facts = await self._facts(ready)
            if self._lost:
                raise EngineFailed(f"vLLM was lost as soon as it was ready: {self._lost}", "start_failed")
            if self._kv is not None:
                self._kv.begin(guest_fingerprint(facts.fingerprint), ready.block_tokens)
            return facts
        except BaseException:
            await self.stop()
            self._state = "failed"
            raise

    def open(self, sequence: GuestSequence) -> None:
        """See `Guest`."""
        seq_id, ready = sequence.new.seq_id, self._ready
        self._open.add(seq_id)
        why = why_refused(sequence)
        if ready is None or self._process is None:
            why = "vLLM is not running"
        if why or ready is None or self._process is None:
            asyncio.get_running_loop().call_soon(self._deliver, SequencePart(seq_id, error=why))
            return
        fields = vllm_sampling(sequence, ready.vocab_size)
        salt = sequence.new.tenant if self._options.prefix_sharing == "tenant" else ""
        grammar = "" if sequence.new.form is None else sequence.new.form.lark
        self._process.send(OpenSequence(seq_id, sequence.new.token_ids, fields, salt, grammar))

    def close(self, seq_id: int) -> None:
        """See `Guest`."""
        if seq_id in self._open:
            self._open.discard(seq_id)
            if self._process is not None:
                self._process.send(CloseSequence(seq_id))

    def status(self) -> dict[str, object]:
        """See `Guest`."""
        ready = self._ready
        return {
            "pid": self._process.pid if self._process is not None else 0,
            "engine": f"vLLM {ready.version}" if ready is not None else "vLLM",
            "kv_events": ready.kv_events if ready is not None else "",
        }

    async def stop(self) -> None:
        """See `Guest`."""
        process, self._process, watch, self._watch = self._process, None, self._watch, None
        grace_s = self._options.stop_timeout_s if self._state == "ready" else 0.0
        self._state, self._ready = "stopped", None
        self._open.clear()
        if watch is not None:
            watch.cancel()
        if self._kv is not None:
            self._kv.end()
        if process is not None:
            await process.end(grace_s)

    async def _start_process(self, arguments: list[str]) -> EngineReady:
        options, loop = self._options, asyncio.get_running_loop()
        self._starting = loop.create_future()
        self._process = process = VllmProcess(options.vllm_python, self._take_message, self._fail)
        try:
            await process.start()
        except OSError as error:
            raise EngineRefused(
                f"RYZ_VLLM_PYTHON, {options.vllm_python!r}, cannot be run: {error.strerror}"
            ) from error
        process.send(StartEngine(str(self._model), arguments))
        try:
            ready = await self._starting
        except EngineFailed as error:
            await process.end(0.0)  # then all that it wrote has been read
            reason = process.explain(str(error))
            text = f"vLLM does not start: {reason}"
            refused = isinstance(error, EngineRefused)
            raise EngineRefused(text) if refused else EngineFailed(text, "start_failed") from None
        self._pinged = self._answered = 0
        self._watch = loop.create_task(self._ping(process))
        return ready

    async def _facts(self, ready: EngineReady) -> GuestFacts:
        computed_as = f"vllm {ready.version} {ready.computed_as}"
        abilities = _ABILITIES - _NOT_WITH_SPECULATION if ready.speculative else _ABILITIES
        abilities |= _GRAMMARS if ready.grammars else frozenset()
        return GuestFacts(
            name=f"vLLM {ready.version}",
            fingerprint=await asyncio.to_thread(weights_identity, self._model, computed_as),
            context_length=ready.context_length,
            vocab_size=ready.vocab_size,
            max_running=ready.max_running,
            kv_tokens=ready.kv_tokens,
            abilities=abilities,
        )

    async def _ping(self, process: VllmProcess) -> None:
        """Ask for signs of life. Silence is counted in pings: clocks go on while this process is stopped."""
        while (self._pinged - self._answered) * self._ping_s < self._options.silence_s:
            self._pinged += 1
            process.send(Ping(self._pinged))
            await asyncio.sleep(self._ping_s)
        self._fail(f"it has not answered for {self._options.silence_s:g} s; RYZ_STEP_TIMEOUT_S gives it more")

    def _take_message(self, message: FromChild) -> None:
        starting = self._starting
        if isinstance(message, Generated):
            for part in message.parts:
                self._deliver(part)
        elif isinstance(message, Ping):
            self._answered = max(self._answered, message.number)
        elif isinstance(message, EngineEnded) and message.refused and starting and not starting.done():
            starting.set_exception(EngineRefused(message.reason))
        elif isinstance(message, EngineEnded):
            said = self._process.last_error() if self._process is not None and self._ready else ""
            self._fail(f"{message.reason}; the last error that it wrote: {said}" if said else message.reason)
        elif starting is not None and not starting.done():
            self._state = "ready"
            starting.set_result(message)

    def _deliver(self, part: SequencePart) -> None:
        if part.seq_id not in self._open:
            return
        if part.finished or part.error:
            self._open.discard(part.seq_id)
        self._on_part(guest_part(part))

    def _fail(self, reason: str) -> None:
        """End all sequences: the process is gone, or of no use."""
        starting = self._starting
        if starting is not None and not starting.done():
            starting.set_exception(EngineFailed(reason, "start_failed"))
            return
        if self._state != "ready":
            return
        self._state, self._lost = "failed", reason
        self._open.clear()
        if self._process is not None:
            self._process.kill()
        if self._kv is not None:
            self._kv.end()
        self._on_failure(f"vLLM is lost: {reason}")


def guest_part(part: SequencePart) -> GuestPart:
    """Return a part as the port has it."""
    sampled = [
        Sampled(
            seq_id=part.seq_id,
            token_id=token_id,
            logprob=part.logprobs[index] if part.logprobs else 0.0,
            top=[Alternative(*one) for one in part.alternatives[index]] if part.alternatives else [],
            cached_tokens=0 if index else part.cached_tokens,
        )
        for index, token_id in enumerate(part.token_ids)
    ]
    return GuestPart(seq_id=part.seq_id, sampled=sampled, finished=part.finished, error=part.error)
