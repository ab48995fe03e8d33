"""Asks a server for short answers, whole, for the probe at the start."""

import asyncio
from dataclasses import dataclass

from services.worker.guests.port import FinishedBy
from services.worker.guests.remote.wire.dialect import Ask, Dialect
from services.worker.guests.remote.wire.event_reader import EventReader
from services.worker.guests.remote.wire.remote_http import RemoteHttp
from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.rank_protocol.demanded_form import DemandedForm
from services.worker.rank_protocol.engine_sampling import EngineSampling

_MAX_EVENT = 1024 * 1024
_MAX_EVENTS = 1024
GREEDY = EngineSampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class SmallAnswer:
    """A short answer.

    Attributes:
        token_ids: Empty if the server brings text only.
        has_logprobs: It has the log probability of each token, named by its id.
        prompt_tokens: The server's count of the prompt; -1: it does not say.
    """

    text: str
    token_ids: tuple[int, ...]
    finished: FinishedBy
    has_logprobs: bool
    prompt_tokens: int

    def says_the_same(self, other: "SmallAnswer") -> bool:
        """Return True if both have the same text and tokens."""
        return (self.text, self.token_ids) == (other.text, other.token_ids)


class SmallAnswers:
    """Asks one server.

    Args:
        at_once: Requests that it is sent side by side.
        timeout_s: Bound of one answer.
    """

    def __init__(self, http: RemoteHttp, model: str, *, at_once: int, timeout_s: float) -> None:
        self._http = http
        self._model = model
        self._turns = asyncio.Semaphore(at_once)
        self._timeout_s = timeout_s

    async def ask(
        self,
        dialect: Dialect,
        prompt: list[int] | str,
        *,
        max_tokens: int = 1,
        sampling: EngineSampling = GREEDY,
        seed: int | None = None,
        form: DemandedForm | None = None,
    ) -> SmallAnswer:
        """Return the answer to a prompt.

        Raises:
            ServerError: There is none; `status` is that of a refusal.
        """
        ask = Ask(
            model=self._model,
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            seed=seed,
            form=form,
        )
        async with self._turns:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._read(dialect, ask)
            except TimeoutError as error:
                raise ServerError("did not answer in time", lost=True) from error

    async def count(self, dialect: Dialect, prompt: list[int] | str) -> int:
        """Return the server's count of a prompt's tokens by an answer that is no stream; -1: it says none.

        Raises:
            ServerError: There is no answer.
        """
        ask = Ask(model=self._model, prompt=prompt, max_tokens=1, sampling=GREEDY)
        body = {**dialect.body(ask), "stream": False}
        body.pop("stream_options", None)
        async with self._turns:
            reply = await self._http.post(dialect.path, body, self._timeout_s)
        if reply.status != 200:
            raise self._http.refusal(reply)
        value = reply.json()
        usage = value.get("usage") if isinstance(value, dict) else None
        found = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return found if type(found) is int else -1

    async def tokenized(self, path: str, body: dict[str, object]) -> list[int] | None:
        """Return the tokens that an endpoint makes of a text; None: there is no such endpoint."""
        try:
            async with self._turns:
                reply = await self._http.post(path, body, self._timeout_s)
        except ServerError:
            return None
        value = reply.json() if reply.status == 200 else None
        tokens = value.get("tokens") if isinstance(value, dict) else None
        if isinstance(tokens, list) and all(type(one) is int for one in tokens):
            return tokens
        return None

    async def _read(self, dialect: Dialect, ask: Ask) -> SmallAnswer:
        texts, ids = list[str](), list[int]()
        finished: FinishedBy = ""
        prompt_tokens, num_logprobs, num_events = -1, 0, 0
        reader = EventReader(_MAX_EVENT)
        async with self._http.events(dialect.path, dialect.body(ask)) as stream:
            async for received in stream:
                for event in reader.feed(received):
                    piece = dialect.read(event)
                    texts.append(piece.text)
                    ids += piece.token_ids or []
                    num_logprobs += len(piece.logprobs)
                    finished = piece.finished or finished
                    prompt_tokens = max(prompt_tokens, piece.prompt_tokens)
                    num_events += 1
                if num_events > _MAX_EVENTS:
                    raise ServerError("sent many more events than tokens were asked for")
        if not finished:
            raise ServerError("ended an answer without saying why")
        named = bool(ids) and num_logprobs == len(ids)
        return SmallAnswer("".join(texts), tuple(ids), finished, named, prompt_tokens)
