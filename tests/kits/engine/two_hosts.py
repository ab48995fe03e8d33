"""Simulates two hosts: two network namespaces, each with its own loopback, joined by a veth pair."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESSES = ("10.213.77.1", "10.213.77.2")


def why_not() -> str:
    """The reason why namespaces cannot be made here; empty if they can."""
    if shutil.which("ip") is None:
        return "needs iproute2"
    if os.geteuid() != 0:
        return "needs root"
    name = f"ryz-probe-{os.getpid()}"
    made = _ip("netns", "add", name, check=False)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    inside = _ip("netns", "exec", name, "true", check=False)
    _ip("netns", "delete", name, check=False)
    return f"namespaces cannot be entered here: {inside.stderr.strip()}" if inside.returncode else ""


@contextmanager
def two_hosts() -> Iterator[tuple[list[str], list[str]]]:
    """Yields, for each host, the command prefix that runs a command there."""
    names = [f"ryz-{os.getpid()}-{end}" for end in "ab"]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "cable0", "netns", names[0], "type", "veth", "peer", "cable0", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "cable0")
            for device in ("lo", "cable0"):
                _ip("-n", name, "link", "set", device, "up")
        yield tuple(["ip", "netns", "exec", name] for name in names)  # type: ignore[misc]
    finally:
        for name in names:
            _ip("netns", "delete", name, check=False)


@contextmanager
def host_beside() -> Iterator[tuple[str, list[str], str]]:
    """Joins another host to this process's own.

    Yields:
        The address of this host on the cable, the command prefix that runs a command on the other one, and
        the name of the other one's namespace, for `set_cable`.
    """
    name, here, there = f"ryz-{os.getpid()}-c", "10.213.78.1", "10.213.78.2"
    device = f"ryz{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("link", "add", device, "type", "veth", "peer", "cable0", "netns", name)
        _ip("address", "add", f"{here}/24", "dev", device)
        _ip("link", "set", device, "up")
        _ip("-n", name, "address", "add", f"{there}/24", "dev", "cable0")
        for inside in ("lo", "cable0"):
            _ip("-n", name, "link", "set", inside, "up")
        yield here, ["ip", "netns", "exec", name], name
    finally:
        _ip("netns", "delete", name, check=False)


def set_cable(namespace: str, state: str) -> None:
    """Plugs the cable of `host_beside` in (`up`) or pulls it (`down`)."""
    _ip("-n", namespace, "link", "set", "cable0", state)


def _ip(*arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)
