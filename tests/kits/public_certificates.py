"""Reads the certificates of public authorities once in a process of tests.

httpx reads all of them for each client, also for one that speaks plain HTTP: 20 ms of CPU time, and tests
make thousands of clients.
"""

import os
import ssl
from functools import cache
from typing import Any

import certifi

_create = ssl.create_default_context


@cache
def _of_authorities(cafile: str) -> ssl.SSLContext:
    return _create(cafile=cafile)


def _create_or_share(*purpose: ssl.Purpose, **options: Any) -> ssl.SSLContext:
    public = {certifi.where(), os.environ.get("SSL_CERT_FILE")}  # what httpx takes unless it is told others
    if not purpose and options.keys() == {"cafile"} and options["cafile"] in public:
        return _of_authorities(options["cafile"])
    return _create(*purpose, **options)


def share_public_certificates() -> None:
    """Let all clients of httpx that check certificates as usual share one TLS context."""
    ssl.create_default_context = _create_or_share
