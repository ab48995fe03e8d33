"""Checks of settings that need more than one of them, at the start of the process."""

import sys
from typing import NoReturn

import structlog

from services.gateway.admission.auth import parse_admin_keys, parse_keys
from services.gateway.admission.identity.oidc_claims import ClaimNames, parse_claims
from services.gateway.answering.intake.model_names import parse_aliases
from services.gateway.resources.sessions.root_key import MIN_KEY_CHARS, root_key
from services.gateway.settings import GatewaySettings

log = structlog.get_logger(__name__)


def checked_keys(settings: GatewaySettings) -> dict[str, str]:
    """The API keys; ends the process if settings contradict each other."""
    try:
        keys = parse_keys(settings.api_keys.get_secret_value())
    except ValueError as error:
        _refuse_setting(f"RYZ_API_KEYS: {error}")
    if 0 < len(settings.session_key.get_secret_value()) < MIN_KEY_CHARS:
        _refuse_setting(f"RYZ_SESSION_KEY needs {MIN_KEY_CHARS} characters or more, or none")
    return keys


def checked_admin_keys(settings: GatewaySettings) -> frozenset[str]:
    """The keys of operators; ends the process if the setting is wrong."""
    try:
        return parse_admin_keys(settings.admin_keys.get_secret_value())
    except ValueError as error:
        _refuse_setting(f"RYZ_ADMIN_KEYS: {error}")


def checked_claims(settings: GatewaySettings) -> ClaimNames:
    """The claims of tokens; ends the process if the settings of tokens are wrong."""
    try:
        claims = parse_claims(settings.oidc_claims)
    except ValueError as error:
        _refuse_setting(f"RYZ_OIDC_CLAIMS: {error}")
    if not settings.oidc_issuer:
        return claims
    if not settings.oidc_audience:
        _refuse_setting("RYZ_OIDC_AUDIENCE is needed with RYZ_OIDC_ISSUER")
    try:
        from services.gateway.admission.identity.oidc_keys import check_issuer  # noqa: PLC0415 (an extra)
    except ImportError:
        _refuse_setting("RYZ_OIDC_ISSUER needs the extra `oidc`: pip install 'ryzanstein[oidc]'")
    try:
        check_issuer(settings.oidc_issuer)
    except ValueError as error:
        _refuse_setting(f"RYZ_OIDC_ISSUER {error}")
    return claims


def checked_aliases(settings: GatewaySettings) -> dict[str, str]:
    """The other names of models; ends the process if the setting is wrong."""
    try:
        return parse_aliases(settings.model_aliases)
    except ValueError as error:
        _refuse_setting(f"RYZ_MODEL_ALIASES: {error}")


def made_root_key(settings: GatewaySettings) -> bytes:
    """The secret behind new session ids; without one, a warning."""
    secret = root_key(settings.session_key.get_secret_value(), settings.nats_url)
    if not secret:
        log.warning(
            "session ids are made without a secret: an id lets its holder test guesses of the first message",
            remedy="set RYZ_SESSION_KEY, the same for all gateways",
        )
    return secret


def _refuse_setting(problem: str) -> NoReturn:
    print(f"wrong setting: {problem}", file=sys.stderr)
    raise SystemExit(2)
