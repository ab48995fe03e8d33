"""Names a stack on a broker that it shares, and decides whether it may share that broker.

The names of groups begin with the stack's, so that two stacks never have one group. On a broker of its own a
stack needs none, and its groups are g0, g1 and so on.
"""

import re
import secrets
import socket
import time
from pathlib import Path

from cli.console import fail
from cli.stack.host.private import write_private
from cli.stack.state import StateDir

NAME = re.compile(r"[A-Za-z0-9_-]{1,48}")
HOST_CHARS = 24
ENDING_S = 3.0  # for services of a stack that is just ending


def check_name(name: str) -> str:
    """Return the given name; fail when it cannot be part of a group's name."""
    if name and not NAME.fullmatch(name):
        fail(f"`--stack {name}`: a stack's name is up to 48 letters, digits, `-` and `_`.", 2)
    return name


def stack_name(given: str, state_dir: StateDir, *, shared: bool) -> str:
    """Return the stack's name: as given, or by host and state directory on a shared broker; else empty.

    The same directory on the same host gives the same name again, so that a stack that is started again takes
    its groups' indices.
    """
    if given or not shared:
        return given
    file = state_dir.path / "stack"
    try:
        own = file.read_text().strip()
    except OSError:
        own = ""
    if not NAME.fullmatch(own):
        own = secrets.token_hex(3)
        state_dir.make()
        write_private(file, own + "\n")
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])[:HOST_CHARS]
    return f"{host}-{own}"


def group_name(stack: str, number: int) -> str:
    """Return the name of a stack's group."""
    return f"{stack}-g{number}" if stack else f"g{number}"


def require_one_store(nats_url: str, state_dir: Path) -> None:
    """Fail when services on that broker keep sessions already, and this stack would keep them elsewhere.

    State services on one broker share the work: with a store each, a session's turns are spread over both,
    and each finds half of them.
    """
    import asyncio  # noqa: PLC0415 (keeps `ryz --help` quick)

    from cli.status.query import query_status  # noqa: PLC0415

    give_up_at = time.monotonic() + ENDING_S
    while others := asyncio.run(query_status(nats_url, StateDir(state_dir))).of_kind("kvstate"):
        if time.monotonic() > give_up_at:
            fail(
                f"Another stack on this broker keeps sessions already (kvstate {others[0].instance_id}). "
                "Stacks that share a broker share their sessions: give both the same `--redis-url`, or leave "
                "out `--nats-url` for a broker of its own.",
                2,
            )
        time.sleep(0.3)
