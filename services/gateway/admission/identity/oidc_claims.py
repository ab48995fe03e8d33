"""What the claims of a token say about its holder: tenant and scopes. Pure.

`RYZ_OIDC_CLAIMS` names the claims: `tenant=org,models=llm_models,admin=groups:llm-admins`. A claim that is
named has to be in the token, so that a mistake at the provider gives no caller more rights than intended.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from services.gateway.admission.errors.refusals import HttpRefusal
from shared.messages import Scopes
from shared.messages.tenants.accounts import Api

_APIS: tuple[Api, ...] = get_args(Api)
_LISTS, _FLAGS = ("models", "apis"), ("admin", "read_only")
_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST = 256  # models or groups in one claim


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Names of claims.

    Attributes:
        tenant: Has the tenant.
        lists: Have models or APIs, by these words.
        flags: Have a value that stands for `admin` or `read_only`, by these words.
    """

    tenant: str
    lists: Mapping[str, str]
    flags: Mapping[str, tuple[str, str]]

    def tenant_of(self, claims: Mapping[str, Any]) -> str:
        """The tenant; raises an `HttpRefusal` of 403 if the token has none."""
        tenant = _value(claims, self.tenant)
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            raise _lacks(self.tenant, "the name of a tenant")
        return tenant

    def scopes_of(self, claims: Mapping[str, Any]) -> Scopes:
        """The scopes; raises an `HttpRefusal` of 403 if a claim is missing."""
        models, apis = [
            _texts(_value(claims, name), name) if (name := self.lists.get(word)) else [] for word in _LISTS
        ]
        admin, read_only = [self._has(claims, word) for word in _FLAGS]
        allowed = [api for api in _APIS if api in apis]
        if apis and not allowed:
            raise _lacks(self.lists["apis"], f"one of {', '.join(_APIS)}")
        return Scopes(models=models, apis=allowed, admin=admin, read_only=read_only)

    def _has(self, claims: Mapping[str, Any], word: str) -> bool:
        if word not in self.flags:
            return False
        name, wanted = self.flags[word]
        found = _value(claims, name)
        return wanted in found if isinstance(found, list) else str(found) == wanted


def parse_claims(text: str) -> ClaimNames:
    """Reads `tenant=claim,models=claim,admin=claim:value`.

    Raises:
        ValueError: An entry is wrong; names its place.
    """
    tenant, lists, flags = "tenant", dict[str, str](), dict[str, tuple[str, str]]()
    for index, entry in enumerate(filter(None, (part.strip() for part in text.split(","))), start=1):
        word, _, claim = (part.strip() for part in entry.partition("="))
        name, _, value = claim.rpartition(":")
        if not claim or word not in ("tenant", *_LISTS, *_FLAGS):
            raise ValueError(
                f"entry {index} needs tenant=, models=, apis=, admin= or read_only= and a claim, "
                f"got {entry[:64]!r}"
            )
        if word in _FLAGS and not (name and value):
            raise ValueError(f"entry {index} needs the form {word}=claim:value, got {entry[:64]!r}")
        if word == "tenant":
            tenant = claim
        elif word in _LISTS:
            lists[word] = claim
        else:
            flags[word] = name, value
    return ClaimNames(tenant, lists, flags)


def _value(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name; with dots in it also one inside another, such as `realm_access.roles`."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _texts(value: Any, name: str) -> list[str]:
    """The texts of a claim: a list of them, or one with spaces between."""
    texts = value.split() if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or len(texts) > _MOST:
        raise _lacks(name, f"1 to {_MOST} names")
    if not all(isinstance(text, str) and 0 < len(text) <= 128 for text in texts):
        raise _lacks(name, "names of up to 128 characters")
    return texts


def _lacks(name: str, what: str) -> HttpRefusal:
    return HttpRefusal(403, "token_claims", f"the claim {name[:64]!r} of the token has to be {what}")
