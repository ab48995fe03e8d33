"""Stacks whose models are served by pairs of groups; the server behind one of them is disturbed."""

import json
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from services.worker.model_files.load_model import load_model
from services.worker.text.tokenizer import Tokenizer
from tests.kits.e2e.stack import RYZ, Stack
from tests.kits.guests.seams import Streamed, attempts_of, check_seams
from tests.kits.guests.servers import GuestServer, program
from tests.kits.waiting import PATIENCE_S, wait_for

Fault = Literal["kill", "stop", "cut"]
OWN, OWN_MODEL = "g0", "own"  # the stack's own group, and the model that it shares with guests
STALL_S = 3.0
ANSWER_TOKENS = 40


@contextmanager
def joined(
    stack: Stack, server: GuestServer, model: str, tokenizer: Path, *, stall_s: float = 60.0
) -> Iterator[None]:
    """A group in front of a server, which has joined the stack and has the server's name."""
    group = server.name
    options = ["--remote", server.url, "--model", model, "--remote-model", "demo", "--group", group]
    command = [*RYZ, "worker", *options, "--tokenizer", str(tokenizer)]
    command += ["--state-dir", str(stack.state_dir.path)]
    env = {"RYZ_REMOTE_STALL_TIMEOUT_S": str(stall_s)}
    log = stack.folder / f"{group}.err"
    with program(*command, log=log, env=env) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"Ready: group {group} serves {model} by "), line + log.read_text()
        yield


@dataclass(slots=True)
class Reader:
    """Reads a streamed answer in a thread of its own.

    Attributes:
        marker: A word that only its prompt has.
        error: What went wrong, if anything did.
    """

    url: str
    body: dict[str, Any]
    marker: str
    text: str = ""
    group: str = ""
    resumed: str = ""
    error: str = ""
    chunks: int = 0
    counts: tuple[int, int] = (0, 0)
    ended: bool = False
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    @property
    def is_over(self) -> bool:
        return not self.thread.is_alive()

    def streamed(self) -> Streamed:
        """The answer, which has to be whole."""
        self.thread.join(PATIENCE_S)
        assert self.is_over, f"hung after {self.chunks} events: {self.marker} of {self.group}"
        assert not self.error, f"{self.marker} of {self.group}: {self.error}"
        assert self.ended, f"{self.marker} of {self.group}: its stream ended without [DONE]"
        return Streamed(self.text, self.group, self.resumed, self.counts)

    def _read(self) -> None:
        try:
            with httpx.stream(
                "POST", f"{self.url}/v1/chat/completions", json=self.body, timeout=PATIENCE_S
            ) as answer:
                self.group = answer.headers.get("x-ryz-group", "")
                if answer.status_code != 200:
                    self.error = f"{answer.status_code} {answer.read().decode()}"
                    return
                for line in answer.iter_lines():
                    self.ended = self.ended or line == "data: [DONE]"
                    if line.startswith("data: {"):
                        self._take(json.loads(line.removeprefix("data: ")))
        except (httpx.HTTPError, ValueError) as error:
            self.error = repr(error)

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = json.dumps(event)
        self.resumed = event.get("resumed", self.resumed)
        if usage := event.get("usage"):
            self.counts = usage["prompt_tokens"], usage["completion_tokens"]
        for choice in event.get("choices", ()):
            if text := choice["delta"].get("content"):
                self.text += text
                self.chunks += 1


@dataclass(slots=True)
class Pair:
    """A model that a guest and another group serve.

    Attributes:
        first: The server that is disturbed; its group has the server's name.
        second: The server of the other group; None: the stack's own group.
    """

    stack: Stack
    model: str
    tokenizer: Tokenizer
    first: GuestServer
    second: GuestServer | None
    asked: int = 0

    def await_ready(self) -> None:
        """Returns when both groups take requests."""
        names = {self.first.name, self.second.name if self.second else OWN}

        def are_ready() -> bool:
            groups = self.stack.status()["groups"]
            return names <= {str(one["group"]) for one in groups if one["state"] == "ready"}

        wait_for(are_ready, f"{names} are ready")

    def ask(self, count: int) -> list[Reader]:
        """Sends requests; each has a prompt of its own."""
        readers = []
        for number in range(count):
            self.asked += 1
            marker = f"[{self.model} {secrets.token_hex(4)}]"  # a model goes on counting numbers
            readers.append(Reader(self.stack.state.url, self._body(marker, float(number % 2)), marker))
        return readers

    def disturb(self, fault: Fault, after: int, more: int = 0) -> int:
        """Disturbs the first server while it streams, and checks all answers.

        Args:
            after: Events that an answer of this server has brought by then.
            more: Bytes of the next event that come, too.

        Returns:
            The number of answers that were cut and went on; 0: the group was given nothing of what came.
        """
        self.await_ready()
        proxy = self.first.proxy
        proxy.hold(after, more)
        readers = self._ask()
        while not proxy.holds:
            if all(reader.is_over for reader in readers):  # routers gave it none: its breaker is open
                self._check_all(readers)
                readers = self._ask()
            time.sleep(0.002)
        self._begin(fault)
        for reader in readers:
            reader.thread.join(PATIENCE_S)
        proxy.let_go()
        self._end(fault)
        return self._check_all(readers)

    def _ask(self) -> list[Reader]:
        for server in self._servers():
            server.proxy.exchanges.clear()
        return self.ask(2)  # one for each group

    def _check_all(self, readers: list[Reader]) -> int:
        return sum(self._check(reader.streamed(), reader.marker) for reader in readers)

    def _begin(self, fault: Fault) -> None:
        match fault:
            case "kill":
                self.first.kill()
                self.first.proxy.let_go()
            case "stop":
                self.first.signal(signal.SIGSTOP)
            case "cut":
                self.first.proxy.cut()
                self.first.proxy.let_go()

    def _end(self, fault: Fault) -> None:
        if fault == "kill":
            self.first.start()
        elif fault == "stop":
            self.first.signal(signal.SIGCONT)

    def _check(self, answer: Streamed, marker: str) -> bool:
        proxies = [server.proxy for server in self._servers()]
        attempts = attempts_of(marker, proxies, self.tokenizer)
        changes = check_seams(answer, attempts, self.tokenizer, own="" if self.second else OWN)
        assert answer.resumed == ("text" if changes else ""), (answer, attempts)
        return changes > 0

    def _servers(self) -> list[GuestServer]:
        return [self.first, *([self.second] if self.second else [])]

    def _body(self, marker: str, temperature: float) -> dict[str, Any]:
        text = f"{marker} Tell a very long story about a fox, a lazy dog and Zürich, with emojis."
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": ANSWER_TOKENS,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@contextmanager
def own_stack(folder: Path, model: Path) -> Iterator[Stack]:
    """A stack with one group of the null engine, which takes 10 ms for a token and ends with the block."""
    options = ["--engine", "null", "--groups", "1", "--routers", "1"]
    options += ["--model", str(model), "--model-name", OWN_MODEL]
    settings = {"RYZ_NULL_STEP_DELAY_MS": "10", "RYZ_ROUTER_POLICY": "round_robin"}
    with Stack(folder, *options, env=settings, calm=False) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


@contextmanager
def pair(stack: Stack, model: Path, first: GuestServer, second: GuestServer | None) -> Iterator[Pair]:
    """Both groups in front of a model of their own; without a second server: with the stack's own group."""
    name = f"{first.name}-{second.name}" if second else OWN_MODEL
    with ExitStack() as groups:
        for server in (first, second):
            if server is not None:
                groups.enter_context(joined(stack, server, name, model, stall_s=STALL_S))
        yield Pair(stack, name, load_model(model).tokenizer, first, second)
