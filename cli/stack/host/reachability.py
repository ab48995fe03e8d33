"""Checks before the start that given servers can be reached, and that the API is not open by accident.

Only a TCP connection is tried; the services speak the protocol and know the passwords.
"""

import socket
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from cli.console import fail
from shared.host.open_network import open_network
from shared.streams import ACCOUNTS_STREAM

WAIT_S = 6.0
PAUSE_S = 0.5
CONNECT_S = 2.0
STREAMS = "jetstream"  # of the state directory: where the broker of `ryz up` keeps its streams
PORTS = {"nats": 4222, "tls": 4222, "http": 80, "ws": 80, "wss": 443, "redis": 6379, "rediss": 6379}


def may_have_keys(state_dir: Path, nats_url: str | None) -> bool:
    """Return whether a broker may have stored keys: that of an earlier start, or one of the user's own.

    The gateway reads them, and refuses to start unless requests need a key; this only lets it try.
    """
    return bool(nats_url) or any(state_dir.glob(f"{STREAMS}/**/{ACCOUNTS_STREAM}"))


def refuse_open_network(host: str, api_keys: str, *, allowed: bool) -> None:
    """Fail if the API would be open to the network, unless that is `allowed`."""
    if not allowed and open_network(host, bool(api_keys.strip())):
        fail(
            f"`--host {host}` without API keys would serve every machine that reaches this one. Set "
            "RYZ_API_KEYS=KEY:TENANT, or start without `--host`, make a key "
            "(`ryz keys create --tenant NAME`) and start again, or say with `--open-to-network` that this "
            "is meant.",
            2,
        )


def require_reachable(what: str, urls: str, option: str, wait_s: float = WAIT_S) -> None:
    """Try for `wait_s` seconds, then fail with the reason; of servers with commas between, one is enough."""
    addresses = [_address(url.strip(), option) for url in urls.split(",")]
    known = [address for address in addresses if address is not None]
    if len(known) < len(addresses):  # a Unix socket or another kind without a port
        return
    give_up = time.monotonic() + wait_s
    while True:
        for host, port in known:
            try:
                socket.create_connection((host, port), timeout=CONNECT_S).close()
            except OSError as error:
                reason = error.strerror or str(error) or type(error).__name__
            else:
                return
        if time.monotonic() + PAUSE_S > give_up:
            break
        time.sleep(PAUSE_S)
    shown = ", ".join(f"{host}:{port}" for host, port in known)
    fail(
        f"No {what} answers at {shown} ({reason}), tried for {wait_s:g} s. Start it, check `{option}`, "
        "or leave the option out: then one is started."
    )


def somebody_listens(urls: str) -> bool:
    """Return whether any of these servers, with commas between, takes a connection, busy as it may be."""
    for address in (_address(url.strip(), "") for url in urls.split(",")):
        if address is None:  # a kind of address without a port
            return True
        with suppress(OSError):
            socket.create_connection(address, timeout=CONNECT_S).close()
            return True
    return False


def _address(url: str, option: str) -> tuple[str, int] | None:
    """Return host and port; None for a kind of address that has none."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    if parts.scheme not in PORTS:
        return None
    try:
        port = parts.port or PORTS[parts.scheme]
    except ValueError:  # its text may have a part of the password, so it is not shown
        fail(f"`{option}` is no address of a server: its port is no number.")
    return parts.hostname or "127.0.0.1", port
