"""Answers that are no stream of events, or no HTTP."""

import asyncio
import gzip

from tests.kits.guests.false_server.http_wire import Answer
from tests.kits.guests.false_server.scripts import Script

_STALL_S = 3600.0
_ERROR = {"error": {"message": "the engine has no room", "type": "server_error"}}


async def status_400(answer: Answer, script: Script) -> None:
    await answer.whole({"object": "error", "message": "bad field", "code": 400}, 400)


async def status_401(answer: Answer, script: Script) -> None:
    await answer.whole({"error": {"message": "Incorrect API key provided"}}, 401)


async def status_404(answer: Answer, script: Script) -> None:
    await answer.whole({"detail": "Not Found"}, 404)


async def status_422(answer: Answer, script: Script) -> None:
    await answer.whole({"detail": [{"loc": ["body"], "msg": "value is not allowed"}]}, 422)


async def status_429(answer: Answer, script: Script) -> None:
    await answer.whole(_ERROR, 429, headers={"Retry-After": "2"})


async def status_500(answer: Answer, script: Script) -> None:
    await answer.whole("Internal Server Error", 500)


async def status_503(answer: Answer, script: Script) -> None:
    await answer.whole(_ERROR, 503, headers={"Retry-After": "1"})


async def redirect(answer: Answer, script: Script) -> None:
    await answer.whole("", 307, headers={"Location": "http://elsewhere.example/v1/completions"})


async def redirect_here(answer: Answer, script: Script) -> None:
    await answer.whole("", 308, headers={"Location": "/v1/completions"})


async def stalled_refusal(answer: Answer, script: Script) -> None:
    await answer.head(500, "text/plain", framing="100")
    await asyncio.sleep(_STALL_S)


async def html(answer: Answer, script: Script) -> None:
    await answer.head(200, "text/html", framing="chunked")
    await answer.write(b"<html>Welcome</html>")
    await answer.end()


async def whole_json(answer: Answer, script: Script) -> None:
    await answer.whole({"choices": [{"index": 0, "text": "all at once", "finish_reason": "stop"}]})


async def error_in_200(answer: Answer, script: Script) -> None:
    await answer.whole(_ERROR)


async def no_content_type(answer: Answer, script: Script) -> None:
    await answer.raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + script.frames()[0])
    answer.cut()


async def no_content(answer: Answer, script: Script) -> None:
    await answer.raw(b"HTTP/1.1 204 No Content\r\n\r\n")


async def compressed(answer: Answer, script: Script) -> None:
    await answer.head(headers={"Content-Encoding": "gzip"})
    await answer.write(gzip.compress(b"".join(script.frames())))
    await answer.end()


async def no_http(answer: Answer, script: Script) -> None:
    await answer.raw(b"SSH-2.0-OpenSSH_9.9\r\n")
    answer.cut()


async def huge_head(answer: Answer, script: Script) -> None:
    await answer.raw(b"HTTP/1.1 200 OK\r\n")
    for number in range(4096):
        await answer.raw(b"X-%d: %s\r\n" % (number, b"x" * 128))
    answer.cut()


async def bad_chunks(answer: Answer, script: Script) -> None:
    await answer.head()
    await answer.write(script.frames()[0])
    await answer.raw(b"no length\r\nof a chunk\r\n")
    answer.cut()


async def no_answer(answer: Answer, script: Script) -> None:
    answer.cut()


async def silence(answer: Answer, script: Script) -> None:
    await asyncio.sleep(_STALL_S)


async def cut_head(answer: Answer, script: Script) -> None:
    await answer.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/eve")
    answer.cut()
