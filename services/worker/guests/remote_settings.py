"""What operators choose of a remote server, and the options that are made of it."""

from dataclasses import dataclass
from pathlib import Path

from services.worker.guests.remote.options import RemoteOptions
from shared.errors import InvalidRequest
from shared.setting_types import UpToHour

_MAX_KEY_BYTES = 16_384


@dataclass(frozen=True, kw_only=True)
class RemoteSettings:
    """`WorkerSettings` inherits the fields, so each is also a setting `RYZ_<NAME>`."""

    remote_url: str = ""
    """With `RYZ_ENGINE=remote`: the address of an OpenAI-compatible server, such as `http://10.0.0.5:8000`.
    See docs/guests.md."""
    remote_model: str = ""
    """The name under which it serves the model; empty: `RYZ_MODEL_NAME`."""
    remote_key_file: str = ""
    """File with the API key of that server; empty: it needs none."""
    remote_hosts: str = ""
    """Hosts that `RYZ_REMOTE_URL` may name, separated by commas; `*.` before one allows all below it. Empty:
    any."""
    remote_ca: str = ""
    """PEM file of authorities for the server's certificate; empty: the system's."""
    remote_stall_timeout_s: UpToHour = 60.0
    """Time between two tokens of the server after which a stream goes on elsewhere."""

    def options(self, served_name: str) -> RemoteOptions:
        """Return the options of the remote guest.

        Args:
            served_name: The name under which the group serves the model.

        Raises:
            InvalidRequest: The file of the key cannot be used.
        """
        hosts = tuple(host.strip() for host in self.remote_hosts.split(",") if host.strip())
        return RemoteOptions(
            url=self.remote_url,
            model=self.remote_model or served_name,
            api_key=read_key(self.remote_key_file),
            ca_file=self.remote_ca,
            allowed_hosts=hosts,
            stall_timeout_s=self.remote_stall_timeout_s,
        )


def read_key(file: str) -> str:
    """Return the key in a file; empty without a file.

    Raises:
        InvalidRequest: It cannot be read, or holds no key.
    """
    if not file:
        return ""
    try:
        with Path(file).open("rb") as opened:
            key = opened.read(_MAX_KEY_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InvalidRequest(
            f"RYZ_REMOTE_KEY_FILE: {file} cannot be read: {why}", param="remote_key_file"
        ) from error
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidRequest(
            f"RYZ_REMOTE_KEY_FILE: {file} must hold one key, on one line, without spaces",
            param="remote_key_file",
        )
    return key
