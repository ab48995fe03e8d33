"""Bodies that are sent piece by piece: the next one waits until the reader has taken the one before."""

import asyncio

from starlette.types import Message, Send

PIECE = 65_536  # bytes; the server buffers as many for a connection before it waits for the reader


async def send_pieces(send: Send, data: bytes, *, more: bool) -> None:
    """Sends a part of a body; of one in several pieces the end waits for the reader, too."""
    if len(data) <= PIECE:
        await send({"type": "http.response.body", "body": data, "more_body": more})
        return
    for start in range(0, len(data), PIECE):
        await send({"type": "http.response.body", "body": data[start : start + PIECE], "more_body": True})
    if not more:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def in_pieces(send: Send, limit_s: float) -> Send:
    """A `send` that gives up on a reader that has not taken the next piece after `limit_s`.

    What is sent after that is dropped, and the server closes the connection on the unfinished answer.
    """
    given_up = False

    async def send_one(message: Message) -> None:
        nonlocal given_up
        if given_up:
            return
        try:
            async with asyncio.timeout(limit_s):
                await send(message)
        except TimeoutError:
            given_up = True

    async def send_all(message: Message) -> None:
        if message["type"] == "http.response.body" and len(message.get("body", b"")) > PIECE:
            await send_pieces(send_one, message["body"], more=message.get("more_body", False))
        else:
            await send_one(message)

    return send_all
