"""Serves one engine to the leader: sequences in, tokens out, pings between its steps."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import aclosing
from importlib import import_module
from typing import Any

import msgspec

from .errors import RefusedError, one_line
from .messages import (
    CloseSequence,
    EngineEnded,
    FromLeader,
    Generated,
    OpenSequence,
    Ping,
    SequencePart,
    StartEngine,
    frame_of,
    read_frame,
)


class VllmChild:
    """Serves one engine to the leader, until one of them is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._vllm: Any = None  # `engine.py`, once vLLM has been imported
        self._engine: Any = None
        self._open: set[int] = set()
        self._parts: list[SequencePart] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[str] = self._loop.create_future()

    async def serve(self) -> None:
        """Start the engine and serve it; return when it has ended, or the leader is gone."""
        decoder = msgspec.msgpack.Decoder(FromLeader)
        first = await read_frame(self._reader)
        if first is None:
            return
        try:
            self._start(decoder.decode(first))
            await self._vllm.warm_up(self._engine)
            grammars = await self._vllm.follows_grammars(self._engine)
            ready = self._vllm.ready_message(self._engine, grammars=grammars)
        except Exception as error:
            refused = isinstance(error, RefusedError)
            await self._send_last(EngineEnded(one_line(error), refused))
            return
        self._loop.add_signal_handler(signal.SIGTERM, self._end, "it was ended by SIGTERM")
        self._writer.write(frame_of(ready))
        orders = self._loop.create_task(self._take_orders(decoder))
        await asyncio.wait((orders, self._ended), return_when=asyncio.FIRST_COMPLETED)
        if self._ended.done():
            await self._send_last(EngineEnded(self._ended.result()))
        elif (broken := orders.exception()) is not None:
            await self._send_last(EngineEnded(f"the leader sent what is no message: {one_line(broken)}"))
        self._engine.shutdown()

    def _start(self, order: FromLeader) -> None:
        """Start vLLM; nothing else runs in this thread meanwhile."""
        if not isinstance(order, StartEngine):
            raise RefusedError(f"the first message must say what to start, got {type(order).__name__}")
        try:
            self._vllm = import_module(".engine", __package__)
        except ImportError as error:
            raise RefusedError(f"the Python of RYZ_VLLM_PYTHON cannot import vLLM: {error}") from error
        self._engine = self._vllm.make_engine(order)

    async def _take_orders(self, decoder: msgspec.msgpack.Decoder[FromLeader]) -> None:
        while (body := await read_frame(self._reader)) is not None:
            order = decoder.decode(body)
            if isinstance(order, OpenSequence):
                self._open.add(order.seq_id)
                self._run(self._generate(order))
            elif isinstance(order, CloseSequence):
                self._open.discard(order.seq_id)
                self._run(self._engine.abort(str(order.seq_id)))
            elif isinstance(order, Ping):
                self._run(self._answer(order))

    async def _answer(self, ping: Ping) -> None:
        await self._engine.is_sleeping()  # asks the process that computes
        self._writer.write(frame_of(ping))

    async def _generate(self, order: OpenSequence) -> None:
        seq_id, wanted = order.seq_id, order.sampling.get("logprobs", 0)
        try:
            sampling = self._vllm.sampling_params(order.sampling, order.grammar)
            prompt = self._vllm.prompt_of(order)
            async with aclosing(self._engine.generate(prompt, sampling, str(seq_id))) as outputs:
                async for output in outputs:
                    if seq_id not in self._open:  # closed before vLLM knew it: leaving the loop aborts it
                        return
                    self._add(self._vllm.part_of(seq_id, output, wanted))
        except Exception as error:
            if not self._engine.errored and seq_id in self._open:
                self._add(SequencePart(seq_id, error=one_line(error)))
            self._check()
        finally:
            self._open.discard(seq_id)

    def _add(self, part: SequencePart) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(part)

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        self._writer.write(frame_of(Generated(parts)))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_done)

    def _note_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._check()

    def _check(self) -> None:
        """End if vLLM's engine is gone; it does not come back in this process."""
        if self._engine.errored:
            self._end("its engine process is gone")

    def _end(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)

    async def _send_last(self, message: EngineEnded) -> None:
        self._writer.write(frame_of(message))
        try:
            await self._writer.drain()
        except ConnectionError:  # the leader is gone
            return
