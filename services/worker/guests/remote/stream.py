"""One sequence at a remote server: from its request to its last part."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from services.worker.guests.port import GuestFacts, GuestPart, GuestSequence
from services.worker.guests.remote.demands import ask_for, unmet
from services.worker.guests.remote.options import RemoteOptions
from services.worker.guests.remote.probing.ability_probe import Probed
from services.worker.guests.remote.tokens.answer_tokens import AnswerTokens
from services.worker.guests.remote.tokens.text_tokens import TextTokens
from services.worker.guests.remote.wire.event_reader import Event, EventReader
from services.worker.guests.remote.wire.remote_http import RemoteHttp
from services.worker.guests.remote.wire.server_error import ServerError

log = structlog.get_logger(__name__)

_EVENT_BYTES = 64 * 1024  # an event of a few tokens with the log probabilities of twenty others
_TOKEN_BYTES = 32  # of an id and of its text within the first event, which may repeat the prompt
_REST_S = 1.0  # for what comes behind the end, so that the connection can be used again


@dataclass(frozen=True, slots=True)
class Server:
    """A server that was probed, with all that streams need of it."""

    http: RemoteHttp
    options: RemoteOptions
    facts: GuestFacts
    probed: Probed
    texts: TextTokens | None


class RemoteStream:
    """One sequence.

    Args:
        on_part: Gets its parts; the last one has an error, or says why it ends.

    Attributes:
        first_token_s: Time from its request to its first token; 0: none has come.
    """

    def __init__(self, server: Server, sequence: GuestSequence, on_part: Callable[[GuestPart], None]) -> None:
        self._server = server
        self._sequence = sequence
        self._on_part = on_part
        self._ended = False  # its last part was told
        self.first_token_s = 0.0

    async def run(self) -> ServerError | None:
        """Bring all parts.

        Returns:
            The failure that ended it, which was told as a part; None if the answer is whole.
        """
        try:
            await self._read()
        except ServerError as error:
            failure = error
        except Exception:
            log.exception("a stream of a remote server could not be read")
            failure = ServerError("sent a stream that could not be read, which is a bug here")
        else:
            return None
        if self._ended:
            return None  # the answer is whole
        reason = f"the server at {self._server.options.host} {failure}"
        self._on_part(GuestPart(seq_id=self._sequence.new.seq_id, error=reason))
        return failure

    async def _read(self) -> None:
        server, sequence = self._server, self._sequence
        if why := unmet(sequence, server.facts.abilities):
            raise ServerError(why)
        probed, options = server.probed, server.options
        ask = ask_for(sequence, options.model, server.facts.abilities, probed.prompts)
        num_prompt = len(sequence.new.token_ids)
        answer = AnswerTokens(
            sequence,
            texts=server.texts,
            vocab_size=server.facts.vocab_size,
            prompt_tokens=num_prompt if probed.prompts is None else -1,
        )
        reader = EventReader(_EVENT_BYTES + _TOKEN_BYTES * num_prompt)
        loop = asyncio.get_running_loop()
        started, silent_s = time.monotonic(), options.first_token_timeout_s
        try:
            async with asyncio.timeout(silent_s) as limit:
                async with server.http.events(probed.dialect.path, probed.dialect.body(ask)) as stream:
                    async for received in stream:
                        if self._take_all(answer, reader.feed(received), started):
                            silent_s = options.stall_timeout_s
                            limit.reschedule(loop.time() + (_REST_S if self._ended else silent_s))
                    self._take_all(answer, reader.end(), started)
        except TimeoutError as error:
            raise ServerError(
                f"brought nothing for {silent_s:g} s after {answer.num_tokens} tokens", lost=True
            ) from error
        if not self._ended:
            raise _unexplained(answer)

    def _take_all(self, answer: AnswerTokens, events: list[Event], started: float) -> bool:
        """Pass on what events bring; returns whether they brought anything."""
        brought = False
        for event in events:
            if self._ended:
                break  # the rest of the connection; what was told stands
            piece = self._server.probed.dialect.read(event)
            sampled, finished = answer.take(piece)
            if sampled or finished:
                brought = True
                if sampled and not self.first_token_s:
                    self.first_token_s = time.monotonic() - started
                self._ended = bool(finished)
                self._on_part(GuestPart(seq_id=self._sequence.new.seq_id, sampled=sampled, finished=finished))
            elif piece.done:
                raise _unexplained(answer)
        return brought


def _unexplained(answer: AnswerTokens) -> ServerError:
    return ServerError(f"ended the stream after {answer.num_tokens} tokens without saying why", lost=True)
