"""Addresses of servers, which may have a password: checks them, and removes passwords from text.

An address is checked before a library does it, whose error could contain a part of the password.
"""

import re
from urllib.parse import urlsplit

from shared.errors import InvalidRequest


def check_address(url: str, variable: str) -> None:
    """Raises `InvalidRequest` if the URL has no valid port, or a password that ends it early.

    The error names the variable and not the URL.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise _no_address(variable, "its port is no number") from None
    # a Unix socket's path may have an @; what follows a server's name may not
    if parts.scheme != "unix" and "@" in parts.path + parts.query + parts.fragment:
        raise _no_address(variable, "its server's name ends before an @")


def _no_address(variable: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{variable} is no address: {why}; in a password / # ? @ and % are written "
        "as %2F %23 %3F %40 and %25",
        param=variable,
    )


def redact(text: str) -> str:
    """Returns the text without users and passwords in URLs, for logs and messages."""
    return re.sub(r"//[^\s,]+@", "//***@", text)
