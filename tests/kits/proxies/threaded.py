"""A proxy that runs beside the test."""

import asyncio
import threading
from concurrent.futures import Future
from functools import partial
from typing import Self

from tests.kits.proxies.tcp import TcpProxy


class ThreadedProxy:
    """A `TcpProxy` with its own event loop and thread, which a test that is busy does not hold up."""

    def __init__(self, port: int) -> None:
        self._proxy = TcpProxy(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def port(self) -> int:
        """The proxy's port."""
        return self._proxy.port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._proxy.port}/0"

    def slow(self, delay_s: float) -> None:
        """Sets the delay of each chunk, in each direction."""
        self._proxy.delay_s = delay_s

    def stall(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.stall)

    def resume(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.resume)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.cut)

    def refuse(self) -> None:
        """Closes all connections and new ones until `resume`."""
        self._loop.call_soon_threadsafe(partial(self._proxy.cut, refuse=True))

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._proxy.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._proxy.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _do(self, work: object) -> None:
        done: Future[object] = asyncio.run_coroutine_threadsafe(work, self._loop)  # type: ignore[arg-type]
        done.result(5)
