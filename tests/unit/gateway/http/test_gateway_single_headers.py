"""Each header that the gateway reads may occur only once in a request."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.gateway.answering.intake import new_calls
from services.gateway.settings import GatewaySettings
from services.gateway.transports.http.gateway_gate import gateway_gate

ROOT = Path(__file__).resolve().parents[4]
MODULES = [*(ROOT / "services" / "gateway").rglob("*.py"), ROOT / "shared" / "web" / "admin_endpoints.py"]
READ = re.compile(
    r'headers\.get\(\s*b?"([a-z-]+)"|"([a-z-]+)" (?:not )?in (?:\w+\.)*headers|headers\[b?"([a-z-]+)"\]'
)

# `accept` and `openai-beta` may stand in several lines: they choose the kind of a page and the words of a
# refusal; the others are read from answers
_SEVERAL = {"accept", "openai-beta", "x-stream-id", "x-ryz-ignored"}


def test_every_header_that_is_read_may_come_once() -> None:
    """With two, a proxy may use the first and the gateway the last."""
    read = {next(filter(None, found)) for path in MODULES for found in READ.findall(path.read_text())}
    assert {"x-session-must-exist", "if-none-match", "authorization"} <= read
    single = gateway_gate(GatewaySettings(max_connections=8), CollectorRegistry()).single_headers
    assert {name.encode() for name in read - _SEVERAL} - single == set()
    assert new_calls.IDEMPOTENCY_HEADER in single
