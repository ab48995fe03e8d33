"""A stack with a group of the null engine and groups that vLLM computes, whose processes are killed.

vLLM's answers are known: each prompt is answered once without a fault, greedily. An answer that is cut has a
beginning of that, token for token, and goes on with the null engine's text, or at another vLLM.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil

from services.worker.model_files.load_model import load_model
from services.worker.text.tokenizer import Tokenizer
from tests.kits.e2e.stack import ROOT, Stack
from tests.kits.guests.guest_fleet import OWN, OWN_MODEL, Reader
from tests.kits.guests.process_group import core_of, group_of
from tests.kits.guests.seams import Attempt, check_seams
from tests.kits.waiting import PATIENCE_S, wait_for

Fault = Literal["core killed", "child killed", "core stopped", "leader and child killed"]
ANSWER_TOKENS = 64
HANG_S = 5.0  # for which vLLM may leave a ping without an answer
START_S = 1800.0  # vLLM imports for a minute on two idle cores
COMMAND = (sys.executable, "-m", "services.worker")
PROMPTS = ("Tell me about Python.", "My name is Zoë.", "How are you?", "What is a list?")


@dataclass(slots=True)
class VllmGroup:
    """A worker process with `RYZ_ENGINE=vllm`."""

    name: str
    command: Sequence[str]
    env: dict[str, str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def leader(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Starts the leader, which starts vLLM."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env={**os.environ, **self.env}, stdout=log, stderr=log
            )

    def end(self) -> None:
        """Ends the leader."""
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()

    def child(self) -> int:
        """vLLM's process, which is the leader's child and leads vLLM's process group."""
        children = psutil.Process(self.leader).children()
        return next(one.pid for one in children if "vllm_child" in " ".join(one.cmdline()))

    def disturb(self, fault: Fault) -> int:
        """Makes a fault; returns the number of the process group that has to end."""
        child = self.child()
        match fault:
            case "core killed":
                os.kill(core_of(child), signal.SIGKILL)
            case "child killed":
                os.kill(child, signal.SIGKILL)
            case "core stopped":
                os.kill(core_of(child), signal.SIGSTOP)
            case "leader and child killed":
                os.kill(child, signal.SIGKILL)
                os.kill(self.leader, signal.SIGKILL)
        return child

    def mend(self, fault: Fault, old: int) -> None:
        """Returns when nothing of the old vLLM is left; a leader that was killed is started again."""
        wait_for(lambda: not group_of(old), f"vLLM's processes of {self.name} have ended: {fault}")
        if fault == "leader and child killed":
            self.end()
            self.start()


@dataclass(slots=True)
class VllmFleet:
    """A model that vLLM groups serve, the first of which is disturbed.

    Attributes:
        known: What vLLM says of each prompt.
    """

    stack: Stack
    groups: list[VllmGroup]
    tokenizer: Tokenizer
    model: str
    known: dict[str, Attempt] = field(default_factory=dict)
    asked: int = 0

    @property
    def own(self) -> str:
        """The stack's own group, if it serves the model."""
        return OWN if self.model == OWN_MODEL else ""

    def await_ready(self) -> None:
        """Returns when all groups take requests."""
        names = {one.name for one in self.groups} | ({self.own} if self.own else set())

        def are_ready() -> bool:
            rows = self.stack.status()["groups"]
            return names <= {str(one["group"]) for one in rows if one["state"] == "ready"}

        wait_for(are_ready, f"{names} are ready", START_S)

    def learn(self) -> None:
        """Has vLLM answer each prompt without a fault."""
        self.await_ready()
        with httpx.Client(base_url=self.stack.state.url, timeout=START_S) as api:
            for prompt in PROMPTS:
                while prompt not in self.known:
                    body = {**self._body(prompt), "stream": False, "logprobs": True}
                    del body["stream_options"]
                    answer = api.post("/v1/chat/completions", json=body)
                    assert answer.status_code == 200, answer.text
                    if answer.headers["x-ryz-group"] != self.own:
                        self.known[prompt] = _attempt(answer.json()["choices"][0])

    def disturb(self, fault: Fault, after: int) -> int:
        """Makes a fault while the first group streams, and checks all answers.

        Args:
            after: Events of text that an answer of this group has brought by then.

        Returns:
            The number of answers that were cut and went on; 0: those of this group had just ended.
        """
        self.await_ready()
        first, readers = self.groups[0], self._ask()
        while not any(one.group == first.name and one.chunks >= after and not one.is_over for one in readers):
            if all(reader.is_over for reader in readers):  # they went elsewhere, or ended a moment before
                self._check_all(readers)
                readers = self._ask()
            time.sleep(0.002)
        old = first.disturb(fault)
        found = self._check_all(readers)
        first.mend(fault, old)
        return found

    def _ask(self) -> list[Reader]:
        self.asked += len(PROMPTS)
        return [Reader(self.stack.state.url, self._body(prompt), prompt) for prompt in PROMPTS]

    def _check_all(self, readers: list[Reader]) -> int:
        return sum(self._check(reader) for reader in readers)

    def _check(self, reader: Reader) -> bool:
        answer, own = reader.streamed(), self.own
        attempts = [] if answer.group == own else [self.known[reader.marker]]
        changes = check_seams(answer, attempts, self.tokenizer, own=own)
        assert answer.counts[1] == ANSWER_TOKENS
        assert answer.resumed == "text" or not changes, answer
        return answer.resumed == "text"

    def _body(self, prompt: str) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "logit_bias": {str(one): -100 for one in self.tokenizer.special_ids},
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def _attempt(choice: dict[str, Any]) -> Attempt:
    """What vLLM says of a prompt, by its tokens."""
    pieces = tuple((bytes(one["bytes"]), 1) for one in choice["logprobs"]["content"])
    assert b"".join(text for text, _ in pieces) == choice["message"]["content"].encode(), choice
    assert len(pieces) == ANSWER_TOKENS
    return Attempt(b"", pieces)


@contextmanager
def vllm_fleet(
    stack: Stack, model: Path, env: dict[str, str], *, groups: int, own: bool
) -> Iterator[VllmFleet]:
    """Groups of vLLM that have joined a stack.

    Args:
        env: `RYZ_VLLM_PYTHON` and the like.
        own: Whether they serve the model of the stack's own group, or one that only they serve.
    """
    name = OWN_MODEL if own else "vllm-only"
    broker = {"RYZ_NATS_URL": stack.state.broker("worker"), "RYZ_NATS_LOCAL": "true"}
    settings = {"RYZ_ENGINE": "vllm", "RYZ_MODEL": str(model), "RYZ_MODEL_NAME": name, **broker, **env}
    settings["RYZ_STEP_TIMEOUT_S"] = str(HANG_S)
    settings["RYZ_ADMIN_PORT"] = "0"
    with ExitStack() as running:
        made = []
        for number in range(1, groups + 1):
            group = f"{name}-{number}"
            one = VllmGroup(group, COMMAND, settings | {"RYZ_GROUP": group}, stack.folder / f"{group}.txt")
            one.start()
            running.callback(one.end)
            made.append(one)
        fleet = VllmFleet(stack, made, load_model(model).tokenizer, name)
        fleet.learn()
        yield fleet
