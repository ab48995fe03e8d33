"""Passwords of bus users, as the broker compares them: bcrypt, so that no file has a password.

The broker hashes at every attempt to connect. A password is 128 random bits and needs no slow hash; an
expensive one would let wrong passwords keep the broker busy.
"""

import secrets

import bcrypt

COST = 5


def new_password() -> str:
    """Return 128 random bits in letters and digits, which need no quoting in a URL."""
    return f"p{secrets.token_hex(16)}"


def hash_password(password: str) -> str:
    """Return the hash of a password for the broker's configuration."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(COST, prefix=b"2a")).decode()
