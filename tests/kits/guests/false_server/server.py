"""The false server: routes requests, and acts badly when it is told to.

It is told by `behave`, or by `POST /behave` with an object of its arguments. `POST /die` ends it.
"""

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Callable

from tests.kits.guests.false_server.behaviours import BEHAVIOURS
from tests.kits.guests.false_server.http_wire import Answer, CutError, HttpRequest, read_request
from tests.kits.guests.false_server.scripts import Object, Voice, write_script
from tests.kits.guests.false_server.self_description import describe

_PLAIN = {"model", "prompt", "max_tokens", "temperature", "top_p", "stream", "seed", "stop", "logprobs"}
_PLAIN |= {"presence_penalty", "frequency_penalty", "logit_bias", "stream_options", "n", "user"}

_HEALTH = ("/health", "/openapi.json")


class FalseServer:
    """One server.

    Args:
        api_key: Must come with each request; empty: none.
        die: Called when it is told to die; it must end all connections.

    Attributes:
        seen: Number of requests by path.
        bodies: The bodies of all completions.
        open_streams: Completions that are being answered.
        num_left: Answers that a client did not read to their end.
        healthy: What its health check says.
        hung: Its health check says nothing.
    """

    def __init__(self, voice: Voice, *, api_key: str = "", die: Callable[[], None] | None = None) -> None:
        self.voice = voice
        self.seen: Counter[str] = Counter()
        self.bodies: list[Object] = []
        self.open_streams = 0
        self.num_left = 0
        self.healthy = True
        self.hung = False
        self.port = 0
        self._api_key = api_key
        self._die = die or self.drop_all
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._name, self._after, self._times = "plain", 3, 0

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        """Listens there."""
        self._server = await asyncio.start_server(self._connected, host, port, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def behave(self, name: str, *, after: int = 3, times: int = -1) -> None:
        """Acts by this name in the next answers; `times` below 0: in all."""
        assert name in BEHAVIOURS, name
        self._name, self._after, self._times = name, after, times

    def drop_all(self) -> None:
        """Listens no more, and ends all connections, as the end of a process does."""
        if self._server is not None:
            self._server.close()
        for writer in [*self._connections]:
            writer.transport.abort()

    async def stop(self) -> None:
        """Ends it."""
        self.drop_all()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = asyncio.current_task()
        assert own is not None
        self._connections.add(writer)
        self._handlers.add(own)
        ahead: bytes | None = b""
        try:
            while ahead is not None and (request := await read_request(reader, ahead)) is not None:
                ahead = await self._answer_while_connected(reader, request, Answer(writer))
        except (CutError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(writer)
            self._handlers.discard(own)
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _answer_while_connected(
        self, reader: asyncio.StreamReader, request: HttpRequest, answer: Answer
    ) -> bytes | None:
        """Returns the beginning of the next request; None when the client has gone."""
        answering = asyncio.ensure_future(self._answer(request, answer))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and gone.result():
                await answering  # the byte is of a request that was sent ahead
            elif not answering.done():
                self.num_left += 1
                return None
            answering.result()
            return (gone.result() or None) if gone.done() else b""
        finally:
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    async def _answer(self, request: HttpRequest, answer: Answer) -> None:
        self.seen[request.path] += 1
        if self._api_key and request.headers.get("authorization") != f"Bearer {self._api_key}":
            await answer.whole({"error": {"message": "Incorrect API key provided"}}, 401)
            return
        body = request.json()
        if request.path == "/behave":
            self.behave(body["name"], after=body.get("after", 3), times=body.get("times", -1))
            await answer.whole({})
        elif request.path == "/die":
            self._die()
        elif request.path == ("/completion" if self.voice.style == "llama.cpp" else "/v1/completions"):
            self.open_streams += 1
            try:
                await self._complete(body, answer)
            finally:
                self.open_streams -= 1
        elif request.path in _HEALTH and self.hung:
            await asyncio.Event().wait()
        elif request.path in _HEALTH and not self.healthy:
            await answer.whole({"status": "error"}, 503)
        else:
            said = describe(self.voice, request.path, body)
            await answer.whole(
                {"detail": "Not Found"} if said is None else said, 404 if said is None else 200
            )

    async def _complete(self, body: Object, answer: Answer) -> None:
        self.bodies.append(body)
        style, prompt = self.voice.style, body["prompt"]
        if style in ("text", "strict") and not isinstance(prompt, str):
            await answer.whole({"detail": [{"msg": "prompt must be a string"}]}, 422)
            return
        if style == "strict" and (unknown := sorted(body.keys() - _PLAIN)):
            await answer.whole({"error": {"message": f"Unrecognized argument: {unknown[0]}"}}, 400)
            return
        if style == "text" and body.get("logprobs") is not None:
            await answer.whole({"error": {"message": "logits_all is off"}}, 500)
            return
        try:
            script = write_script(self.voice, body, self._after)
        except ValueError as error:
            await answer.whole({"error": {"message": str(error)}}, 400)
            return
        if not body.get("stream"):
            usage = {"prompt_tokens": script.prompt_tokens, "completion_tokens": 1}
            choice = {"index": 0, "text": "", "finish_reason": "length"}
            await answer.whole({"choices": [choice], "usage": usage, "model": body["model"]})
            return
        await BEHAVIOURS[self._next_name()].act(answer, script)

    def _next_name(self) -> str:
        if self._name == "plain" or not self._times:
            return "plain"
        self._times -= 1
        return self._name
