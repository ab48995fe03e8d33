"""Rules for the names by which a server may be called and for the web pages that may use it. Pure.

A web page can make the browser of a person behind the firewall send requests to this server: by name (DNS
rebinding points a name of the page's own at the server), or across origins. So a server without API keys
checks the name and the origin, which browsers send and pages cannot set.
"""

import re
import socket
from dataclasses import dataclass
from ipaddress import ip_address

_AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_REMEMBERED = 256


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches that address or name."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def names(text: str) -> frozenset[str]:
    """A setting's names, separated by commas, in lower case."""
    return frozenset(part.strip().lower() for part in text.split(",") if part.strip())


class HostRule:
    """Returns whether a request's `Host` names this server.

    Args:
        allowed: Names without ports; `*.` before one allows all below it, `*` allows any.
        literals: Allow addresses and loopback names, which cannot be names of a page.
        single: Allow names without a dot, such as those of containers, which cannot be names of a page.
    """

    def __init__(self, allowed: frozenset[str], *, literals: bool, single: bool) -> None:
        self._any = "*" in allowed
        self._exact = {name for name in allowed if not name.startswith("*")}
        self._below = tuple(name[1:] for name in allowed if name.startswith("*."))
        self._literals = literals
        self._single = single
        self._remembered: dict[bytes, bool] = {}

    def allows(self, host: bytes) -> bool:
        """Returns whether the rule allows `host`, the value of the header."""
        known = self._remembered.get(host)
        if known is None:
            known = self._decide(host)
            if len(self._remembered) < _REMEMBERED:
                self._remembered[host] = known
        return known

    def _decide(self, host: bytes) -> bool:
        if self._any:
            return True
        found = _AUTHORITY.fullmatch(host)
        if found is None:
            return False
        name = found[1].decode("ascii").lower().removesuffix(".").strip("[]")
        if name in self._exact or name.endswith(self._below or ("\0",)):
            return True
        if self._literals and (_is_address(name) or is_loopback(name)):
            return True
        return self._single and bool(name) and "." not in name


def host_rule(setting: str, bound: str, *, has_keys: bool) -> HostRule:
    """Makes the rule of a server.

    Args:
        setting: Names from the operator; empty for those that no web page can have.
        bound: The address that the server listens on.
        has_keys: Requests need a key, which a page does not have.
    """
    if setting.strip():
        return HostRule(names(setting), literals=False, single=False)
    if is_loopback(bound):
        return HostRule(frozenset({bound.lower()}), literals=True, single=False)
    if has_keys:
        return HostRule(frozenset({"*"}), literals=True, single=True)
    own = {bound.lower(), socket.gethostname().lower()}
    return HostRule(frozenset(own), literals=True, single=True)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class OriginRule:
    """Returns whether a page may use the server.

    Attributes:
        allowed: Origins such as `https://chat.example`, or `*`.
        has_keys: Requests need a key. Browsers add none, so a page that sends one has it.
    """

    allowed: frozenset[str]
    has_keys: bool

    def allows(self, origin: bytes, site: bytes, host: bytes, *, brings_key: bool) -> bool:
        """Returns whether the page that a request comes from may use the server.

        Args:
            origin: The header `Origin`, which browsers send with all but simple reads; empty if missing.
            site: The header `Sec-Fetch-Site`, which browsers send with those, too; empty if missing.
            host: The header `Host`.
            brings_key: The request has an `Authorization`.
        """
        if not origin and site in (b"", b"none", b"same-origin"):
            return True
        if self.has_keys and brings_key:
            return True
        if origin:
            return self.lists(origin) or origin.lower().partition(b"://")[2] == host.lower()
        return "*" in self.allowed

    def lists(self, origin: bytes) -> bool:
        """Returns whether the operator allowed that origin by name."""
        return "*" in self.allowed or origin.decode("latin-1").lower() in self.allowed
