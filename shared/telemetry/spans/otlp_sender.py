"""Sends encoded spans to an OpenTelemetry collector by OTLP over HTTP, over a connection that stays open.

It reads the variables of OpenTelemetry's exporters: endpoint, headers, timeout, compression and certificate.
"""

import gzip
import importlib
import os
from types import ModuleType
from typing import Any
from urllib.parse import unquote

from shared.errors import Unavailable

_DEFAULT = "http://localhost:4318"
_PATH = "/v1/traces"
_TIMEOUT_S = 10.0


class OtlpSender:
    """A collector.

    Args:
        endpoint: Its whole URL; empty: that of the environment, else a collector on this machine.

    Raises:
        Unavailable: The HTTP client is not installed, or a variable cannot be read.
    """

    def __init__(self, endpoint: str = "") -> None:
        client = _http_client()
        self._url = endpoint or _endpoint()
        self._gzip = _variable("COMPRESSION").lower() == "gzip"
        headers = {"Content-Type": "application/x-protobuf", "User-Agent": "ryzanstein", **_headers()}
        if self._gzip:
            headers["Content-Encoding"] = "gzip"
        self._pool: Any = client.PoolManager(
            num_pools=1,
            headers=headers,
            timeout=_timeout_s(),
            retries=client.Retry(total=2, redirect=0, backoff_factor=0.2, allowed_methods=None),
            ca_certs=_variable("CERTIFICATE") or None,
        )

    def send(self, request: bytes) -> str:
        """Sends a request.

        Returns:
            Why the collector did not take it; empty: it did.
        """
        body = gzip.compress(request, 1) if self._gzip else request
        answer = self._pool.request("POST", self._url, body=body)
        if 200 <= answer.status < 300:
            return ""
        return f"{self._url} answered {answer.status}"

    def close(self) -> None:
        """Closes the connection."""
        self._pool.clear()


def _http_client() -> ModuleType:
    try:
        return importlib.import_module("urllib3")
    except ImportError as error:
        raise Unavailable(
            "RYZ_TRACE_EXPORT=otlp needs the package urllib3: install the extra `tracing` "
            "(pip install 'ryzanstein[tracing]'), or set RYZ_TRACE_EXPORT=console",
            reason="exporter_missing",
        ) from error


def _variable(name: str) -> str:
    """A variable of OpenTelemetry's exporters: that for traces, else that for everything."""
    return (
        os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
        or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}")
        or ""
    )


def _endpoint() -> str:
    whole = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return whole or (os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or _DEFAULT).rstrip("/") + _PATH


def _timeout_s() -> float:
    text = _variable("TIMEOUT")
    try:
        return float(text) if text else _TIMEOUT_S
    except ValueError as error:
        raise _wrong(f"OTEL_EXPORTER_OTLP_TIMEOUT={text} is no number of seconds") from error


def _headers() -> dict[str, str]:
    """`name=value` pairs with commas between them, percent-encoded."""
    found = dict[str, str]()
    for pair in filter(None, _variable("HEADERS").split(",")):
        name, equals, value = pair.partition("=")
        if not equals:
            raise _wrong(f"OTEL_EXPORTER_OTLP_HEADERS: {name} has no value; write name=value")
        found[unquote(name).strip().lower()] = unquote(value).strip()
    return found


def _wrong(what: str) -> Unavailable:
    return Unavailable(what, reason="wrong_exporter_setting")
