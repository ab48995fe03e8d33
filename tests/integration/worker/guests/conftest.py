"""A false server, and a guest in front of it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from services.worker.guests.remote.guest import RemoteGuest
from services.worker.guests.remote.options import RemoteOptions
from services.worker.null.model import END, ByteTokenizer
from services.worker.text.tokenizer import Tokenizer
from tests.kits.guests.false_server.scripts import DEFAULT_TEXT, Style, Voice
from tests.kits.guests.false_server.server import FalseServer
from tests.kits.guests.guest_runs import GuestRun

StartServer = Callable[..., Awaitable[FalseServer]]
StartGuest = Callable[..., Awaitable[GuestRun]]


def make_voice(style: Style, text: str = DEFAULT_TEXT, tokenizer: Tokenizer | None = None) -> Voice:
    """The voice of a server whose tokens are bytes."""
    tokenizer = tokenizer or ByteTokenizer()
    return Voice(
        style=style,
        tokenizer=tokenizer,
        answer=tokenizer.encode(text, add_special_tokens=False),
        end_id=END,
        model="demo",
    )


def make_guest(server: FalseServer, tokenizer: Tokenizer | None = None, **given: Any) -> RemoteGuest:
    """A guest that does not judge its server by lost streams, and that checks it only if it is told to."""
    values: dict[str, Any] = {
        "url": f"http://127.0.0.1:{server.port}",
        "model": "demo",
        "lost_in_a_row": 1000,
        "health_interval_s": 3600.0,
        "health_timeout_s": 60.0,
        **given,
    }
    context_length = values.pop("context_length", 1000)
    options = RemoteOptions(**values)
    return RemoteGuest(options, tokenizer=tokenizer or ByteTokenizer(), context_length=context_length)


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    """Starts servers that end with the test."""
    async with AsyncExitStack() as stack:

        async def start(style: Style, *, voice: Voice | None = None, **options: Any) -> FalseServer:
            tls, port = options.pop("tls", None), options.pop("port", 0)
            server = FalseServer(voice or make_voice(style), **options)
            await server.start(port, tls)
            stack.push_async_callback(server.stop)
            return server

        yield start


@pytest.fixture
async def start_guest() -> AsyncIterator[StartGuest]:
    """Starts guests that end with the test."""
    async with AsyncExitStack() as stack:

        async def start(server: FalseServer, *, tokenizer: Tokenizer | None = None, **given: Any) -> GuestRun:
            guest = make_guest(server, tokenizer, **given)
            run = GuestRun(guest)
            stack.push_async_callback(guest.stop)
            run.facts = await guest.start()
            return run

        yield start
