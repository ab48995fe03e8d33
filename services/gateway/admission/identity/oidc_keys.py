"""The keys by which an identity provider signs tokens: fetched by JWKS, kept for a time, fetched again.

Fetching runs in a thread. A token with a key that is not known has the keys fetched again, at most once a
minute; its caller gets a 503 with `Retry-After`. Keys are valid for `KEEP_S` after they were last fetched.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt
import structlog

from shared.errors import Unavailable
from shared.web.host_rules import is_loopback

REFRESH_S = 600.0
AGAIN_S = 60.0
KEEP_S = 3600.0  # as long as what is known of stored keys
_FETCH_S = 5.0
_MOST_BYTES = 256 * 1024
_MIN_RSA_BITS = 2048
_CURVES = {("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key, and the only algorithm that it is used with."""

    algorithm: str
    key: Any


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A provider that moved is named anew by its operator."""
        return


def check_issuer(issuer: str) -> None:
    """Raises `ValueError` for an issuer that is no URL of HTTPS, or of HTTP on this machine."""
    parts = urlsplit(issuer)
    safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    if not safe or not parts.hostname:
        raise ValueError(f"needs an address like https://id.example, got {issuer[:128]!r}")


def read_keys(raw: Mapping[str, Any]) -> dict[str, SigningKey]:
    """The keys of a JWKS that may be used, by their ids: RSA of 2048 bits or more, P-256, Ed25519."""
    found = {}
    for one in raw.get("keys", ()):
        if not isinstance(one, dict) or not isinstance(one.get("kid"), str) or one.get("use", "sig") != "sig":
            continue
        kind = one.get("kty")
        algorithm = "RS256" if kind == "RSA" else _CURVES.get((str(kind), str(one.get("crv"))), "")
        if not algorithm or one.get("alg", algorithm) != algorithm:
            continue
        try:
            key = jwt.PyJWK(one, algorithm=algorithm).key
        except jwt.PyJWTError as error:
            log.warning("a key of the identity provider cannot be read", error=str(error)[:200])
            continue
        if kind != "RSA" or key.key_size >= _MIN_RSA_BITS:
            found[one["kid"]] = SigningKey(algorithm, key)
    return found


def fetch_keys(issuer: str) -> dict[str, SigningKey]:
    """Fetches the keys of an issuer, whose discovery document names their address.

    Raises:
        OSError: It does not answer, or with something else.
    """
    document = _json_of(issuer.rstrip("/") + "/.well-known/openid-configuration")
    if document.get("issuer") != issuer:
        raise OSError(f"the document is of another issuer: {str(document.get('issuer'))[:128]!r}")
    address = str(document.get("jwks_uri", ""))
    try:
        check_issuer(address)
    except ValueError as error:
        raise OSError(f"`jwks_uri` {error}") from None
    keys = read_keys(_json_of(address))
    if not keys:
        raise OSError("none of its keys can be used: RS256, ES256 and EdDSA are")
    return keys


def _json_of(address: str) -> dict[str, Any]:
    request = Request(address, headers={"Accept": "application/json"})
    with build_opener(_NoRedirects).open(request, timeout=_FETCH_S) as answer:
        raw = answer.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise OSError(f"{address} has more than {_MOST_BYTES} bytes")
    try:
        found = json.loads(raw)
    except ValueError as error:
        raise OSError(f"{address} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise OSError(f"{address} is no JSON object")
    return found


class SigningKeys:
    """The keys of one issuer. Run `keep` as a task.

    Args:
        issuer: Its address.
        fetch: Fetches its keys; runs in a thread.
        clock: Seconds that only grow.

    Attributes:
        version: Counts the times that other keys came.
    """

    def __init__(
        self,
        issuer: str,
        fetch: Callable[[str], dict[str, SigningKey]] = fetch_keys,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.version = 0
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str, SigningKey] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._wanted = asyncio.Event()

    def find(self, kid: str) -> SigningKey | None:
        """The key of that id; None: the issuer has none.

        Raises:
            Unavailable: It may have one: the keys are fetched, or could not be.
        """
        now = self._clock()
        if now - self._fetched_at > KEEP_S:
            self._wanted.set()
            raise Unavailable(
                "tokens cannot be checked: the keys of their issuer cannot be fetched; retry in a moment",
                reason="oidc_away",
                retry_after_s=AGAIN_S if self._tried_at > float("-inf") else 1.0,
            )
        found = self._keys.get(kid)
        if found is None and now - self._tried_at > AGAIN_S:
            self._wanted.set()
            raise Unavailable(
                "the token is signed with a key that is not known yet; retry in a moment",
                reason="oidc_keys",
                retry_after_s=1.0,
            )
        return found

    async def refresh(self) -> None:
        """Fetches the keys; those that are known stand if that fails."""
        self._wanted.clear()
        self._tried_at = self._clock()
        try:
            keys = await asyncio.to_thread(self._fetch, self._issuer)
        except OSError as error:
            log.warning("keys of the identity provider not fetched", error=str(error)[:300])
            return
        self._fetched_at = self._clock()
        if keys.keys() != self._keys.keys():
            log.info("keys of the identity provider fetched", known=len(keys))
        self._keys = keys
        self.version += 1

    async def keep(self) -> None:
        """Fetches the keys now and then, and when one is missing, until it is cancelled."""
        while True:
            wait_s = REFRESH_S if self._clock() - self._fetched_at < REFRESH_S else AGAIN_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(max(0.0, self._tried_at + AGAIN_S - self._clock()))
            await self.refresh()
