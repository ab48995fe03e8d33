"""Certificate files made for a test: of an authority, a server and a client."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Pair:
    """Paths of a certificate and its key."""

    cert: str
    key: str


class Authority:
    """A certificate authority; `ca` is the path of its certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        folder.mkdir(parents=True, exist_ok=True)
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str = "127.0.0.1") -> Pair:
        """Issues a certificate for a host or client name."""
        made = self._authority.issue_cert(name)
        pair = Pair(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        Path(pair.cert).write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(pair.key)
        return pair

    def server_context(self) -> ssl.SSLContext:
        """The TLS context for a server in this process."""
        pair, context = self.issue(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        return context
