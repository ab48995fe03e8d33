"""Checks the address of a server before a library does, whose error could contain a part of the password."""

from urllib.parse import urlsplit

from shared.errors import InvalidRequest


def check_address(url: str, variable: str) -> None:
    """Raises `InvalidRequest` if the URL has no valid port; the error names the variable and not the URL."""
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise InvalidRequest(
            f"{variable} is no address: its port is no number; in a password / # ? @ and % are written "
            "as %2F %23 %3F %40 and %25",
            param=variable,
        ) from None
