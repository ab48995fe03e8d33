"""Checks the address of a server before a library does, whose error may have a part of the password in it."""

from urllib.parse import urlsplit

from shared.errors import InvalidRequest


def check_address(url: str, variable: str) -> None:
    """Raises `InvalidRequest`, with the variable's name and without the URL, if host and port are no such."""
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise InvalidRequest(
            f"{variable} is no address: its port is no number; in a password / # ? @ and % are written "
            "as %2F %23 %3F %40 and %25",
            param=variable,
        ) from None
