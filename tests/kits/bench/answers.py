"""A server that answers completion requests with given bytes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


def completion(tokens: int = 16, content: str = "a b") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "length"}
    return json.dumps({"choices": [choice], "usage": {"completion_tokens": tokens}}).encode()


def chunks(tokens: int = 16, text: str = "a", done: bool = True, finish: str | None = "length") -> bytes:
    events: list[dict[str, object]] = [
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": text}}]},
        {"choices": [{"delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": {"completion_tokens": tokens}},
    ]
    lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return b"".join(lines) + (b"data: [DONE]\n\n" if done else b"")


def http(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{extra}\r\n".encode() + body


@asynccontextmanager
async def answering(answer: Callable[[int, bytes], bytes | None]) -> AsyncIterator[int]:
    """Runs a server and yields its port; request n gets `answer(n, body)`, and None closes the connection."""
    number = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal number
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                reply = answer(number, await reader.readexactly(length))
                number += 1
                if reply is None:
                    break
                writer.write(reply)
                if b"connection: close" in reply:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the load generator has disconnected
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
