"""An identity provider on this machine: discovery, JWKS, tokens. HTTP on loopback."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "ryz"
_MAKERS: dict[str, tuple[Any, Any]] = {
    "RS256": (lambda: rsa.generate_private_key(65537, 2048), RSAAlgorithm),
    "ES256": (lambda: ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
    "EdDSA": (ed25519.Ed25519PrivateKey.generate, OKPAlgorithm),
}


class Issuer:
    """As a context manager, the provider; its keys may be changed while it runs.

    Attributes:
        url: Its address, which is the issuer.
        fetched: How often its keys were fetched.
        away: It answers with 503.
    """

    def __init__(self) -> None:
        self.fetched = 0
        self.away = False
        self._keys: dict[str, tuple[str, Any]] = {}
        self._shown: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_key(self, kid: str, algorithm: str = "ES256", *, shown: bool = True) -> None:
        """Makes a key; without `shown` it is not among those that it publishes."""
        make, _ = _MAKERS[algorithm]
        self._keys[kid] = algorithm, make()
        if shown:
            self._shown.add(kid)

    def remove_key(self, kid: str) -> None:
        self._shown.discard(kid)

    def token(self, kid: str, *, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token signed with a key; claims in place of the usual ones, None for none."""
        algorithm, key = self._keys[kid]
        return jwt.encode(self.claims(**claims), key, algorithm, headers={"kid": kid, **(headers or {})})

    def claims(self, **more: Any) -> dict[str, Any]:
        """Those of a token for an hour, with others."""
        usual = {"iss": self.url, "aud": AUDIENCE, "exp": time.time() + 3600, "tenant": "ada", "sub": "x"}
        return {name: value for name, value in (usual | more).items() if value is not None}

    def jwks(self) -> dict[str, Any]:
        found = []
        for kid in sorted(self._shown):
            algorithm, key = self._keys[kid]
            shown = _MAKERS[algorithm][1].to_jwk(key.public_key(), as_dict=True)
            found.append(shown | {"kid": kid, "use": "sig"})
        return {"keys": found}

    def public_text(self, kid: str) -> bytes:
        """A public key as a text, which must not be taken for the secret of HS256."""
        return json.dumps(next(one for one in self.jwks()["keys"] if one["kid"] == kid)).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                documents = {
                    "/.well-known/openid-configuration": {
                        "issuer": issuer.url,
                        "jwks_uri": issuer.url + "/keys",
                    },
                    "/keys": issuer.jwks(),
                }
                issuer.fetched += self.path == "/keys"
                body = json.dumps(documents.get(self.path, {})).encode()
                self.send_response(503 if issuer.away else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing is logged."""

        return Handler
