"""Two gateways, a router and a group as processes on one broker, and a client that resumes streams.

The group runs the null engine with slow steps, so that a stream lasts long enough to be interrupted.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from tests.kits.programs.launch import Program, start_program
from tests.kits.servers import NatsServer, free_ports
from tests.kits.waiting import PATIENCE_S, pauses

ROOT = Path(__file__).parents[3]
STEP_MS = 15
BEAT_MS = "100"  # heartbeats are most of the CPU time of an idle stack, some of which live for minutes
KEYS = {"one": "key-of-one", "two": "key-of-two"}


@dataclass
class Client:
    """A client of one stream that keeps whole events only, like an `EventSource`.

    Attributes:
        body: The request.
        tenant: Tenant whose key is sent.
        headers: Further headers of the request.
        events: Id and data of each event, without an error event.
        stream_id: The stream's id; empty before the answer.
        error: Code of the error event; empty without one.
        answers: Responses, one for each connection.
    """

    body: dict[str, Any]
    tenant: str = "one"
    headers: dict[str, str] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)
    stream_id: str = ""
    error: str = ""
    answers: list[httpx.Response] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The route that starts the stream."""
        return "/v1/chat/completions" if "messages" in self.body else "/v1/completions"

    @property
    def last_id(self) -> str:
        """Id of the last event; empty before the first."""
        return self.events[-1][0] if self.events else ""

    @property
    def done(self) -> bool:
        """Whether the last event was `[DONE]`."""
        return bool(self.events) and self.events[-1][1] == "[DONE]"

    @property
    def summary(self) -> dict[Any, Any]:
        """Text, logprobs and finish reason of each choice, independent of the division into events.

        The number of tokens in an event depends on the group's load.
        """
        summary: dict[Any, Any] = {"done": self.done}
        for _, data in self.events:
            chunk = json.loads(data) if data != "[DONE]" else {"choices": []}
            if usage := chunk.get("usage"):
                summary["usage"] = (usage["prompt_tokens"], usage["completion_tokens"])
            for choice in chunk["choices"]:
                so_far = summary.setdefault(
                    choice["index"], {"text": "", "logprobs": [], "offsets": [], "ends": []}
                )
                so_far["text"] += choice.get("text", choice.get("delta", {}).get("content", ""))
                logprobs = choice["logprobs"] or {}
                so_far["logprobs"] += logprobs.get("content") or logprobs.get("tokens") or []
                so_far["offsets"] += logprobs.get("text_offset", [])
                so_far["ends"] += [choice["finish_reason"]] if choice["finish_reason"] else []
        return summary

    async def begin(self, url: str, *, cut_after: int = 0) -> None:
        """Starts the stream and reads it, up to `cut_after` bytes if that is not 0."""
        options = {"include_event_ids": True, **self.body.get("stream_options", {})}
        body = self.body | {"stream_options": options}
        async with self._http(url) as http, http.stream("POST", self.path, json=body) as answer:
            await self._read(answer, cut_after)

    async def resume(self, url: str, *, cut_after: int = 0, query: bool = False, name: str = "") -> None:
        """Resumes the stream after the last event received."""
        position = {} if query else {"Last-Event-ID": self.last_id}
        path = f"/v1/streams/{name or self.stream_id}" + (f"?from={self.last_id}" if query else "")
        async with self._http(url) as http, http.stream("GET", path, headers=position) as answer:
            await self._read(answer, cut_after)

    async def finish(self, urls: list[str]) -> None:
        """Resumes at any of the gateways until the stream has ended."""
        rng = random.Random(self.stream_id)
        give_up = time.monotonic() + PATIENCE_S
        while not self.done and not self.error:
            assert time.monotonic() < give_up, (self.stream_id, self.last_id)
            try:
                await self.resume(rng.choice(urls))
            except httpx.TransportError:
                await asyncio.sleep(0.05)

    def _http(self, url: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {KEYS[self.tenant]}", **self.headers}
        return httpx.AsyncClient(base_url=url, headers=headers, timeout=30)

    async def _read(self, answer: httpx.Response, cut_after: int) -> None:
        self.answers.append(answer)
        if answer.status_code != 200:
            self.error = json.loads(await answer.aread())["error"]["code"]
            return
        self.stream_id = answer.headers["x-stream-id"]
        buffer, size = b"", 0
        async for data in answer.aiter_raw():
            keep = data if not cut_after else data[: max(0, cut_after - size)]
            size += len(data)
            buffer += keep
            *whole, buffer = buffer.split(b"\n\n")
            for event in whole:
                self._take(event.decode())
            if cut_after and size >= cut_after:
                return

    def _take(self, event: str) -> None:
        fields = dict(line.split(": ", 1) for line in event.split("\n"))
        if fields["data"].startswith('{"error"'):
            assert "id" not in fields, event
            self.error = json.loads(fields["data"])["error"]["code"]
            return
        self.events.append((fields["id"], fields["data"]))


class Fleet:
    """The processes; a gateway is named by its index in `gateways`."""

    def __init__(self, folder: Path, *, groups: int = 1, **settings: str) -> None:
        self.nats = NatsServer(folder)
        self.folder = folder
        self.settings = settings
        self.gateway_constants: list[dict[str, Any]] = [{}, {}]
        self.groups = groups
        self.ports = free_ports(2)
        self.admin_ports = free_ports(groups)
        self.processes: dict[str, Program] = {}

    @property
    def gateways(self) -> list[str]:
        """URLs of the gateways."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def start_gateway(self, index: int) -> None:
        """Starts or restarts a gateway without waiting for it."""
        keys = ",".join(f"{key}:{tenant}" for tenant, key in KEYS.items())
        self._start(
            f"gateway{index}", "tests.kits.gateway.gateway_main", json.dumps(self.gateway_constants[index]),
            http_port=str(self.ports[index]), api_keys=keys,
        )  # fmt: skip

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        """Sends a signal to a process and waits for its exit."""
        process = self.processes.pop(name)
        process.send_signal(how)
        process.wait(timeout=30)

    def await_gateway(self, index: int) -> None:
        """Waits until the gateway answers and lists the model."""
        self.await_answer(
            f"gateway{index}",
            f"{self.gateways[index]}/v1/models",
            lambda answer: answer.status_code == 200 and bool(answer.json()["data"]),
        )

    def await_answer(self, name: str, url: str, good: Callable[[httpx.Response], bool]) -> None:
        """Waits for a good answer of a process; fails at once if the process ends."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            with suppress(httpx.TransportError):
                if good(httpx.get(url, headers={"Authorization": f"Bearer {KEYS['one']}"}, timeout=5)):
                    return
            ended = self.processes[name].poll()
            if ended is not None or time.monotonic() > give_up:
                end = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
                state = "is not ready" if ended is None else f"ended with {ended}"
                raise AssertionError(f"{name} {state}; its log ends with:\n{end}")
            time.sleep(0.05)

    def gateway_metric(self, index: int, name: str) -> float:
        """The value of a series without labels."""
        return self._metric(self.gateways[index], name)

    def running(self) -> float:
        """Number of sequences in the groups, waiting ones included."""
        return sum(
            self._metric(f"http://127.0.0.1:{port}", f"ryz_worker_num_requests_{state}")
            for port in self.admin_ports
            for state in ("running", "waiting")
        )

    async def until(self, condition: Any, what: str, timeout_s: float = PATIENCE_S) -> None:
        """Waits for a condition, which `what` describes in the error."""
        give_up = time.monotonic() + timeout_s
        for pause_s in pauses(longest_s=0.1):
            if condition():
                return
            assert time.monotonic() < give_up, f"not within {timeout_s:g} s: {what}"
            await asyncio.sleep(pause_s)

    @staticmethod
    def _metric(url: str, name: str) -> float:
        for line in httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text.splitlines():
            if line.startswith((f"{name} ", f"{name}{{")):
                return float(line.rpartition(" ")[2])
        return 0.0

    def start_group(self, index: int) -> None:
        """Starts or restarts a group without waiting for it."""
        step = {"null_step_delay_ms": str(STEP_MS)}
        self._start(
            f"group{index}", "services.worker", group=f"g{index}", engine="null", model_name="demo",
            admin_port=str(self.admin_ports[index]), **step,
        )  # fmt: skip

    def start_all(self) -> None:
        """Starts the servers and services, and waits until they serve."""
        self.nats.start()
        self._start("router", "services.router")
        for index in range(self.groups):
            self.start_group(index)
        for index in range(len(self.ports)):
            self.start_gateway(index)
        for index in range(len(self.ports)):
            self.await_gateway(index)

    def stop_all(self) -> None:
        """Ends what was started, whether all of it was or not."""
        for name in tuple(self.processes):
            self.kill(name)
        self.nats.stop()

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:
            self.stop_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def _start(self, name: str, module: str, *arguments: str, **settings: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RYZ_")}
        given = {"nats_url": self.nats.url, "heartbeat_interval_ms": BEAT_MS} | settings | self.settings
        env |= {f"RYZ_{key.upper()}": value for key, value in given.items()}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = start_program(module, *arguments, env=env, stdout=log, stderr=log)
