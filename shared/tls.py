"""TLS from files named in settings, for clients and servers.

A file that is missing or contains no certificate is refused at the start, with the name of its variable.
"""

import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from shared.errors import InvalidRequest


def client_context(kind: str, ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Returns the context of a client. It always verifies certificates and host names.

    Args:
        kind: Part of the variables' names: `NATS` stands for `RYZ_NATS_CA` and so on.
        ca: File with the authorities to trust; empty for those of the system.
        cert: File with the client's certificate; empty for none.
        key: File with its private key; empty if `cert` has it.

    Raises:
        InvalidRequest: A file cannot be used.
    """
    context = ssl.create_default_context()
    if ca:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _try(kind, "CA", ca, lambda: context.load_verify_locations(ca))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_own(context, kind, cert, key)
    return context


def broker_context(ca: str, cert: str, key: str) -> ssl.SSLContext | None:
    """Returns the context for connections to the broker; None if no file is given, so its URL decides.

    Raises:
        InvalidRequest: A file cannot be used.
    """
    return client_context("NATS", ca, cert, key) if ca or cert or key else None


def check_server_files(kind: str, cert: str, key: str) -> None:
    """Raises `InvalidRequest` unless these are a certificate and its key, or both are empty."""
    _load_own(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), kind, cert, key)


def with_files(url: str, ca: str, cert: str, key: str, variable: str = "RYZ_REDIS_URL") -> str:
    """Returns the URL of a Redis with the files as parameters for redis-py.

    Ranks get the address of the store as one URL, also on other hosts, which need the files under the same
    paths.

    Raises:
        InvalidRequest: A file cannot be used, or the URL is not for TLS.
    """
    files = {"ssl_ca_certs": ca, "ssl_certfile": cert, "ssl_keyfile": key}
    given = {name: file for name, file in files.items() if file}
    if not given:
        return url
    if not url.startswith("rediss://"):
        raise InvalidRequest(
            f"RYZ_REDIS_CA, RYZ_REDIS_CERT and RYZ_REDIS_KEY are for TLS: {variable} has to begin with rediss://",
            param=variable,
        )
    client_context("REDIS", ca, cert, key)
    return f"{url}{'&' if '?' in url else '?'}{urlencode(given)}"


def _load_own(context: ssl.SSLContext, kind: str, cert: str, key: str) -> None:
    if key and not cert:
        raise InvalidRequest(f"RYZ_{kind}_KEY is set without RYZ_{kind}_CERT", param=f"RYZ_{kind}_CERT")
    if not cert:
        return
    if key and not Path(key).is_file():
        raise InvalidRequest(f"RYZ_{kind}_KEY: there is no file {key}", param=f"RYZ_{kind}_KEY")
    # one file may contain both; a key with a password would wait for input at a terminal
    _try(kind, "CERT", cert, lambda: context.load_cert_chain(cert, key or None, password=_no_password))


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted; give one that is not, readable by this user only")


def _try(kind: str, what: str, file: str, load: Callable[[], None]) -> None:
    name = f"RYZ_{kind}_{what}"
    try:
        load()
    except FileNotFoundError as error:
        raise InvalidRequest(f"{name}: there is no file {file}", param=name) from error
    except (ssl.SSLError, OSError, ValueError) as error:
        key = f" (with RYZ_{kind}_KEY)" if what == "CERT" else ""
        raise InvalidRequest(f"{name}={file}{key} cannot be used: {error}", param=name) from error
