"""Plans the process of a group that joins a stack, and finds the stack."""

import asyncio
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.console import fail
from cli.models.catalogue import catalogue
from cli.stack.host.ports import pick_ports
from cli.stack.model_dir import find_model
from cli.stack.plan import OF_OTHER_BROKERS
from cli.stack.service_plan import admin_address
from cli.stack.state import StateDir
from cli.status.query import find_broker, query_status
from cli.worker.command import WorkerOptions

_GROUP = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The process of a group.

    Attributes:
        env: Variables beside those of this command.
        admin_port: Its admin endpoint listens there, on the loopback address.
        nats_url: The stack's broker, for this command.
    """

    group: str
    model: str
    remote: str
    env: Mapping[str, str]
    admin_port: int
    nats_url: str
    state_dir: StateDir
    start_timeout_s: float

    @property
    def log(self) -> Path:
        """Where its log lines go."""
        return self.state_dir.log(f"worker-{self.group}")


def require_stack(nats_url: str, state_dir: Path) -> str:
    """Return the broker of the stack that the group joins.

    Raises:
        CommandError: No stack is up there.
    """
    state = StateDir(state_dir)
    url = find_broker(nats_url, state)
    report = asyncio.run(query_status(url, state))
    if not report.services:
        fail(report.problem)
    if not report.of_kind("router"):
        fail("Services answer on this broker, but no router: a group would get no requests. Start one first.")
    return url


def plan_group(options: WorkerOptions, url: str) -> GroupPlan:
    """Return the plan of a group.

    Args:
        options: What was asked for.
        url: The broker, as `require_stack` found it.

    Raises:
        CommandError: The tokenizer cannot be had, or an option is wrong.
    """
    group = options.group or default_group(options.remote, options.model)
    if not _GROUP.fullmatch(group):
        fail(f"`--group {group[:80]}`: a group's name is up to 64 letters, digits, `-` and `_`.", 2)
    state_dir = StateDir(options.state_dir)
    (port,) = pick_ports(1)
    env = admin_address(port) | {
        "RYZ_ENGINE": "remote",
        "RYZ_GROUP": group,
        "RYZ_MODEL": str(_tokenizer(options)),
        "RYZ_MODEL_NAME": options.model,
        "RYZ_REMOTE_URL": options.remote,
        "RYZ_REMOTE_MODEL": options.remote_model,
        "RYZ_REMOTE_KEY_FILE": _absolute(options.key_file),
        "RYZ_REMOTE_CA": _absolute(options.ca_file),
        "RYZ_WEIGHT": str(options.weight),
        "RYZ_TENSOR_PARALLEL": "1",
        **_broker(url, state_dir),
    }
    if options.max_running:
        env["RYZ_MAX_RUNNING"] = str(options.max_running)
        env["RYZ_TOKEN_BUDGET"] = str(max(512, options.max_running))
    return GroupPlan(group, options.model, options.remote, env, port, url, state_dir, options.start_timeout_s)


def default_group(remote: str, model: str) -> str:
    """Return the name of a group without one: the same each time, so that sessions find it again."""
    return f"remote-{hashlib.blake2b(f'{remote} {model}'.encode(), digest_size=3).hexdigest()}"


def _broker(url: str, state_dir: StateDir) -> dict[str, str]:
    """Return how the group's leader reaches the broker: as leaders, if it is the stack's own."""
    state = state_dir.read()
    if state is None or url not in state.nats_urls.values():
        return {"RYZ_NATS_URL": url}
    return dict.fromkeys(OF_OTHER_BROKERS, "") | {
        "RYZ_NATS_URL": state.broker("worker"),
        "RYZ_NATS_LOCAL": "true",
    }


def _tokenizer(options: WorkerOptions) -> Path:
    given = options.tokenizer
    known = catalogue().get(options.model)
    if not given and known is not None and not known.hub:  # gigabytes, of which a tokenizer is a small part
        given = options.model
    if not given:
        fail(
            f"`--tokenizer` is missing: name the tokenizer of {options.model}, a Hugging Face directory or a "
            "GGUF file. Weights are not needed.",
            2,
        )
    path = find_model(Path(given), "null", 1, pull=options.pull)  # no rank reads its weights
    assert path is not None
    return path


def _absolute(file: str) -> str:
    return os.path.abspath(os.path.expanduser(file)) if file else ""
