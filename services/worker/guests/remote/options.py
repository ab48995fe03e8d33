"""What an operator says of a remote server, and the check of its address."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """A server and how long it is waited for.

    Attributes:
        url: Its address, with or without `/v1`, such as `http://127.0.0.1:8080` or `https://host/path/v1`.
        model: The name under which it serves the model.
        api_key: Sent as bearer token; empty: none. Never shown.
        ca_file: Certificates of authorities to trust instead of the system's; empty: the system's.
        allowed_hosts: Hosts that `url` may name, `*.` before one allows all below it; empty: any.
        connect_timeout_s: Bound of a connection's set-up.
        first_token_timeout_s: Bound of the time to the first token, the server's queue and prefill included.
        stall_timeout_s: Bound of the time between two tokens. Keep-alive comments do not count.
        probe_timeout_s: Bound of the whole probe at the start.
        health_interval_s: Time between two health checks while no stream brings anything.
        health_timeout_s: Bound of one of them; a second one in a row without an answer is a failure.
        lost_in_a_row: So many streams lost one after another, with no token between them, are a failure.
    """

    url: str
    model: str
    api_key: str = field(default="", repr=False)
    ca_file: str = ""
    allowed_hosts: tuple[str, ...] = ()
    connect_timeout_s: float = 5.0
    first_token_timeout_s: float = 300.0
    stall_timeout_s: float = 60.0
    probe_timeout_s: float = 120.0
    health_interval_s: float = 2.0
    health_timeout_s: float = 5.0
    lost_in_a_row: int = 3

    @property
    def base_url(self) -> str:
        """The address without `/v1`, which paths are appended to."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def host(self) -> str:
        """Host and port, as messages and `ryz status` name the server."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


def check_options(options: RemoteOptions) -> None:
    """Check what can be checked without the server.

    Raises:
        InvalidRequest: The address is none, names a host that is not allowed, or has a password in it.
    """
    try:
        parts = urlsplit(options.url)
        host = parts.hostname or ""
        _ = parts.port  # raises ValueError
    except ValueError as error:
        raise InvalidRequest(
            f"the address of the remote server cannot be read: {error}", param="url"
        ) from error
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(
            f"the address of {options.host} has a user or password in it; give the key by a file",
            param="url",
        )
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise InvalidRequest(
            "the address of the remote server must look like http://host:port or https://host/path, got "
            f"{options.url!r}",
            param="url",
        )
    if options.allowed_hosts and not any(_matches(host, pattern) for pattern in options.allowed_hosts):
        raise InvalidRequest(
            f"{host} is not one of the allowed hosts ({', '.join(options.allowed_hosts)}); allow it, or "
            "name another server",
            param="url",
        )
    if not options.model:
        raise InvalidRequest(f"the model's name at {options.host} is missing", param="model")


def _matches(host: str, pattern: str) -> bool:
    host, pattern = host.lower().rstrip("."), pattern.lower().rstrip(".")
    return host == pattern or (pattern.startswith("*.") and host.endswith(pattern[1:]))
