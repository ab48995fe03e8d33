"""One sequence at a remote server: from its request to its last part.

A server may end an answer by length before it has brought all tokens: llama.cpp says neither ids nor text of
tokens that end within a character, and the last tokens may be such. It is asked again from there on, for so
many more tokens that the character is whole; those behind the length are left out.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from services.worker.guests.port import FinishedBy, GuestFacts, GuestPart, GuestSequence
from services.worker.guests.remote.demands import ask_for, unmet
from services.worker.guests.remote.options import RemoteOptions
from services.worker.guests.remote.probing.ability_probe import Probed
from services.worker.guests.remote.tokens.answer_tokens import AnswerTokens
from services.worker.guests.remote.tokens.text_tokens import TextTokens, ends_within_character
from services.worker.guests.remote.wire.event_reader import Event, EventReader
from services.worker.guests.remote.wire.remote_http import RemoteHttp
from services.worker.guests.remote.wire.server_error import ServerError

log = structlog.get_logger(__name__)

_EVENT_BYTES = 64 * 1024  # an event of a few tokens with the log probabilities of twenty others
_TOKEN_BYTES = 32  # of an id and of its text within the first event, which may repeat the prompt
_TAIL = 8  # tokens, with the last character
_SPARE = 4  # tokens behind the last one that is wanted, with its character
_REST_S = 1.0  # for what comes behind the end: a server may take the end of its connection for a cancel


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
        self._brought = list[int]()
        self._finished: FinishedBy = ""  # why the server ended the answer to the last request
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
        """Bring all parts; ask again where an answer ends by length and too early.

        Raises:
            ServerError: The answer is not whole.
        """
        await self._exchange(self._sequence, 0)
        while not self._ended:
            num_brought = len(self._brought)
            new = self._sequence.new
            rest = GuestSequence(
                new=msgspec.structs.replace(new, token_ids=[*new.token_ids, *self._brought]),
                max_tokens=self._sequence.max_tokens - num_brought,
                adapter=self._sequence.adapter,
            )
            await self._exchange(rest, _SPARE)
            if not self._ended and len(self._brought) == num_brought:
                raise _too_short(num_brought)

    async def _exchange(self, sequence: GuestSequence, spare: int) -> None:
        """Bring what the server answers to a request for the tokens that are wanted and `spare` more."""
        server = self._server
        if why := unmet(sequence, server.facts.abilities):
            raise _too_short(len(self._brought)) if self._brought else ServerError(why)
        probed, options = server.probed, server.options
        asked = msgspec.structs.replace(sequence, max_tokens=sequence.max_tokens + spare)
        given = (asked, options.model, server.facts.abilities, probed.prompts)
        # a prompt that is spelled out is tokenized for the check of it
        ask = ask_for(*given) if probed.prompts is None else await asyncio.to_thread(ask_for, *given)
        num_prompt = len(sequence.new.token_ids)
        if server.texts is not None and "token_ids_out" not in server.facts.abilities:
            tail = server.texts.bytes_of(sequence.new.token_ids[-_TAIL:])
            if ends_within_character(tail):
                raise ServerError("brings text only, and this sequence ends within a character")
        answer = AnswerTokens(
            sequence,
            texts=server.texts,
            vocab_size=server.facts.vocab_size,
            prompt_tokens=num_prompt if probed.prompts is None else -1,
        )
        reader = EventReader(_EVENT_BYTES + _TOKEN_BYTES * num_prompt)
        loop = asyncio.get_running_loop()
        self._finished = ""
        started, silent_s = time.monotonic(), options.first_token_timeout_s
        rest_s = _REST_S if not spare else 0.0
        try:
            async with asyncio.timeout(silent_s) as limit:
                async with server.http.events(probed.dialect.path, probed.dialect.body(ask)) as stream:
                    async for received in stream:
                        if self._take_all(answer, reader.feed(received), started):
                            silent_s = options.stall_timeout_s
                            limit.reschedule(loop.time() + (rest_s if self._finished else silent_s))
                    self._take_all(answer, reader.end(), started)
        except TimeoutError as error:
            if not self._finished:
                count = len(self._brought)
                raise ServerError(
                    f"brought nothing for {silent_s:g} s after {count} tokens", lost=True
                ) from error
        if not self._finished:
            raise _unexplained(answer)

    def _take_all(self, answer: AnswerTokens, events: list[Event], started: float) -> bool:
        """Pass on what events bring; returns whether they brought anything."""
        brought = False
        for event in events:
            if self._finished:
                break  # the rest of the connection; what was told stands
            piece = self._server.probed.dialect.read(event)
            sampled, self._finished = answer.take(piece)
            if sampled or self._finished:
                brought = True
                if sampled and not self.first_token_s:
                    self.first_token_s = time.monotonic() - started
                self._brought += [one.token_id for one in sampled]
                finished = "" if self._is_short else self._finished
                self._ended = bool(finished)
                self._on_part(GuestPart(seq_id=self._sequence.new.seq_id, sampled=sampled, finished=finished))
            elif piece.done:
                raise _unexplained(answer)
        return brought

    @property
    def _is_short(self) -> bool:
        """Returns whether the server ended the answer by length, and more tokens are wanted."""
        return self._finished == "length" and len(self._brought) < self._sequence.max_tokens


def _too_short(count: int) -> ServerError:
    return ServerError(f"ended the answer by length after {count} tokens, and more were asked for")


def _unexplained(answer: AnswerTokens) -> ServerError:
    return ServerError(f"ended the stream after {answer.num_tokens} tokens without saying why", lost=True)
