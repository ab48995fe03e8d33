"""Reads tokens of an identity provider (OpenID Connect): signature, times, issuer, audience, claims.

Only RS256, ES256 and EdDSA are accepted, each with keys of its own kind. Tokens that were valid are known
until they end or the issuer's keys are fetched again, so that the common request checks no signature.
"""

import hashlib
import re
from collections import OrderedDict
from typing import Any

import jwt

from services.gateway.admission.errors.refusals import KEY_ASKED, HttpRefusal
from services.gateway.admission.identity.identity import Identity
from services.gateway.admission.identity.oidc_claims import ClaimNames
from services.gateway.admission.identity.oidc_keys import SigningKeys

ALGORITHMS = ("RS256", "ES256", "EdDSA")
LEEWAY_S = 30  # by which clocks may differ
MAX_BYTES = 8192
MAX_KNOWN = 4096
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


class OidcTokens:
    """See `identities.Tokens`.

    Args:
        issuer: Who makes them.
        audience: For whom they have to be.
        claims: Where tenant and scopes stand in them.
        keys: Of the issuer.
    """

    def __init__(self, issuer: str, audience: str, claims: ClaimNames, keys: SigningKeys) -> None:
        self._issuer = issuer
        self._audience = audience
        self._claims = claims
        self._keys = keys
        self._known: OrderedDict[bytes, Identity] = OrderedDict()
        self._version = 0  # of the keys, with which they were checked

    def reads(self, key: str) -> bool:
        """See `IdentityTokens`."""
        return _TOKEN.fullmatch(key) is not None

    def identity(self, token: str, now_s: float) -> Identity:
        """See `IdentityTokens`."""
        if len(token) > MAX_BYTES:
            raise _invalid(f"it has {len(token)} bytes, and a token may have {MAX_BYTES}")
        if self._version != self._keys.version:
            self._known.clear()
            self._version = self._keys.version
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._read(token)
            self._known[digest] = known
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        if now_s >= known.expires_s:
            raise _expired()
        return known

    def _read(self, token: str) -> Identity:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise _invalid("its header cannot be read") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise _invalid(f"it is signed by none of {', '.join(ALGORITHMS)}")
        if not isinstance(kid, str):
            raise _invalid("it does not name its key (`kid`)")
        key = self._keys.find(kid)
        if key is None or key.algorithm != algorithm:
            raise _invalid("its issuer has no such key")
        claims = self._verified(token, key.key, algorithm)
        expires_s = float(claims["exp"]) + LEEWAY_S
        return Identity(
            self._claims.tenant_of(claims), scopes=self._claims.scopes_of(claims), expires_s=expires_s
        )

    def _verified(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise _expired() from None
        except jwt.ImmatureSignatureError:
            raise _invalid("it is not valid yet") from None
        except jwt.InvalidAudienceError:
            raise _invalid("it is for another audience") from None
        except jwt.InvalidIssuerError:
            raise _invalid("it is of another issuer") from None
        except jwt.PyJWTError:
            raise _invalid("its signature or its claims are wrong") from None


def _invalid(why: str) -> HttpRefusal:
    return HttpRefusal(401, "invalid_token", f"the token is not valid: {why}", KEY_ASKED)


def _expired() -> HttpRefusal:
    return HttpRefusal(401, "key_expired", "the token has expired", KEY_ASKED)
