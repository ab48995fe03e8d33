"""A single key that an endpoint asks for, as `Authorization: Bearer <key>`."""

import hmac

from pydantic import SecretStr


class BearerKey:
    """Compares in constant time. An empty key asks for nothing."""

    def __init__(self, key: SecretStr) -> None:
        self._key = key.get_secret_value().strip().encode()

    @property
    def is_set(self) -> bool:
        """Whether there is a key to ask for."""
        return bool(self._key)

    def matches(self, authorization: str) -> bool:
        """Whether that header's value has the key; never where none is set."""
        scheme, _, given = authorization.partition(" ")
        same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._key)
        return self.is_set and scheme.lower() == "bearer" and same
