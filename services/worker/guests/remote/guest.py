"""The remote guest: the guest port in front of an OpenAI-compatible server.

Each sequence is a stream of its own over HTTP. The server is probed at the start, and watched while it runs.
"""

import asyncio
from collections.abc import Callable

from services.worker.guests.port import Ability, GuestFacts, GuestPart, GuestSequence
from services.worker.guests.remote.health_watch import HealthWatch
from services.worker.guests.remote.options import RemoteOptions, check_options
from services.worker.guests.remote.probing.ability_probe import AbilityProbe
from services.worker.guests.remote.probing.server_facts import ServerFacts, read_facts
from services.worker.guests.remote.stream import RemoteStream, Server
from services.worker.guests.remote.tokens.text_tokens import TextTokens
from services.worker.guests.remote.wire.remote_http import RemoteHttp
from services.worker.rank_protocol.failures import EngineFailed, EngineRefused
from services.worker.text.tokenizer import Tokenizer

_SMOOTHING = 0.2  # weight of the newest time to a first token


class RemoteGuest:
    """See the module.

    Args:
        tokenizer: Of the model that the server serves; the probe checks that it is.
        context_length: Of the model by our files; 0: not known. The server's counts where it is smaller.

    Raises:
        InvalidRequest: The options are wrong.
    """

    def __init__(self, options: RemoteOptions, *, tokenizer: Tokenizer, context_length: int = 0) -> None:
        check_options(options)
        self._options = options
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._on_part: Callable[[GuestPart], None] = lambda _: None
        self._on_failure: Callable[[str], None] = lambda _: None
        self._http: RemoteHttp | None = None
        self._server: Server | None = None
        self._watch: HealthWatch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._streams: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()  # of sequences that are over
        self._num_lost = 0
        self._tokens_brought = 0
        self._first_token_s = 0.0
        self._state = "stopped"

    async def start(self) -> GuestFacts:
        """See `Guest`."""
        await self.stop()
        self._state = "starting"
        try:
            self._http = http = RemoteHttp(self._options)
        except OSError as error:
            self._state = "failed"
            raise EngineRefused(
                f"the certificates in {self._options.ca_file} cannot be read: {error}"
            ) from error
        try:
            async with asyncio.timeout(self._options.probe_timeout_s):
                described = await read_facts(http, self._options)
                probed = await AbilityProbe(http, self._options, described, self._tokenizer).run()
            facts = self._facts(described, probed.abilities)
        except TimeoutError as error:
            await self._fail_start()
            raise EngineFailed(
                f"the server at {self._options.host} did not answer all of the probe within "
                f"{self._options.probe_timeout_s:g} s; see what keeps it busy",
                "start_failed",
            ) from error
        except EngineFailed:
            await self._fail_start()
            raise
        texts = TextTokens(self._tokenizer) if self._tokenizer.has_token_bytes else None
        self._server = Server(http, self._options, facts, probed, texts)
        self._num_lost, self._state = 0, "ready"
        self._watch = HealthWatch(
            http,
            self._options,
            described,
            num_tokens=lambda: self._tokens_brought,
            on_failure=self._fail,
        )
        self._watching = asyncio.create_task(self._watch.run())
        return facts

    def watch(self, on_part: Callable[[GuestPart], None], on_failure: Callable[[str], None]) -> None:
        """See `Guest`."""
        self._on_part = on_part
        self._on_failure = on_failure

    def open(self, sequence: GuestSequence) -> None:
        """See `Guest`."""
        if self._server is not None and self._state == "ready":
            self._streams[sequence.new.seq_id] = asyncio.create_task(self._run(self._server, sequence))

    def close(self, seq_id: int) -> None:
        """See `Guest`."""
        task = self._streams.pop(seq_id, None)
        if task is not None:
            task.cancel()

    def status(self) -> dict[str, object]:
        """See `Guest`."""
        row: dict[str, object] = {
            "state": self._state,
            "server": self._options.host,
            "model": self._options.model,
            "streams": len(self._streams),
            "tokens": self._tokens_brought,
        }
        if self._server is not None:
            facts = self._server.facts
            row |= {
                "name": facts.name,
                "abilities": sorted(facts.abilities),
                "context_length": facts.context_length,
                "max_running": facts.max_running,
                "kv_tokens": facts.kv_tokens,
                "first_token_s": round(self._first_token_s, 4),
            }
        if self._watch is not None:
            row |= {f"server_{name}": value for name, value in self._watch.load.items()}
        return row

    async def stop(self) -> None:
        """See `Guest`."""
        tasks = self._tasks()
        self._streams.clear()
        self._watching = self._watch = self._server = None
        self._state = "stopped"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            http, self._http = self._http, None
            await http.close()

    async def _fail_start(self) -> None:
        await self.stop()
        self._state = "failed"

    def _facts(self, described: ServerFacts, abilities: frozenset[Ability]) -> GuestFacts:
        lengths = [size for size in (described.context_length, self._context_length) if size]
        if not lengths:
            raise EngineRefused(
                f"neither the server at {self._options.host} nor the model's files say how long a sequence "
                "may be; give the group the model directory or GGUF file of the model"
            )
        return GuestFacts(
            name=described.name,
            fingerprint=f"{described.kind} {described.base_model}",
            context_length=min(lengths),
            vocab_size=self._tokenizer.vocab_size,
            max_running=described.max_running,
            kv_tokens=described.kv_tokens,
            abilities=abilities,
        )

    async def _run(self, server: Server, sequence: GuestSequence) -> None:
        seq_id = sequence.new.seq_id
        own = asyncio.current_task()
        assert own is not None

        def pass_on(part: GuestPart) -> None:
            if self._streams.get(seq_id) is not own:
                return  # it is closed, or the guest has failed
            if part.finished or part.error:
                del self._streams[seq_id]
                self._ending.add(own)  # what is left of its connection is read, and no close ends that
                own.add_done_callback(self._ending.discard)
            self._tokens_brought += len(part.sampled)
            self._num_lost = 0 if part.sampled else self._num_lost
            self._on_part(part)

        stream = RemoteStream(server, sequence, pass_on)
        error = await stream.run()
        if stream.first_token_s:
            before = self._first_token_s or stream.first_token_s
            self._first_token_s = before + _SMOOTHING * (stream.first_token_s - before)
        if error is not None and own in self._ending and (error.gone or error.lost):
            self._lose(str(error), gone=error.gone)

    def _lose(self, why: str, *, gone: bool) -> None:
        """Judge the server by a stream that was lost."""
        self._num_lost += 1
        if gone or self._num_lost >= self._options.lost_in_a_row:
            self._fail(f"the server at {self._options.host} {why}")
        elif self._watch is not None:
            self._watch.hurry()

    def _fail(self, why: str) -> None:
        """End all streams without a word, and tell the watcher."""
        if self._state != "ready":
            return
        self._state = "failed"
        own = asyncio.current_task()
        for task in self._tasks():
            if task is not own:
                task.cancel()
        self._streams.clear()
        self._on_failure(why)

    def _tasks(self) -> list[asyncio.Task[None]]:
        watching = [self._watching] if self._watching is not None else []
        return [*self._streams.values(), *self._ending, *watching]
