"""Certificates made for a test, as files: an authority, a server's, a client's."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate's file and that of its key."""

    cert: str
    key: str


class Authority:
    """An authority with its file; whoever trusts `ca` trusts what it issues."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        folder.mkdir(parents=True, exist_ok=True)
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str = "127.0.0.1") -> Pair:
        """A certificate for that host or client."""
        made = self._authority.issue_cert(name)
        pair = Pair(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        Path(pair.cert).write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(pair.key)
        return pair

    def server_context(self, name: str = "127.0.0.1") -> ssl.SSLContext:
        """For a server of this process."""
        pair, context = self.issue(name), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        return context
