"""A single key that an endpoint needs, as `Authorization: Bearer <key>`."""

import hmac

from pydantic import SecretStr


class BearerKey:
    """Compares keys in constant time. An empty key means that none is needed."""

    def __init__(self, key: SecretStr) -> None:
        self._key = key.get_secret_value().strip().encode()

    @property
    def is_set(self) -> bool:
        """Returns whether a key is needed."""
        return bool(self._key)

    def matches(self, authorization: str) -> bool:
        """Returns whether the value of the header has the key; always false if no key is set."""
        scheme, _, given = authorization.partition(" ")
        same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._key)
        return self.is_set and scheme.lower() == "bearer" and same
