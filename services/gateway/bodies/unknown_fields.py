"""What becomes of unknown fields in the bodies of a route: a refusal, or a count and a line in the log."""

import re
from collections.abc import Sequence

import structlog

from services.gateway.metrics import GatewayMetrics
from shared.errors import InvalidRequest

_MAX_NAMES = 256  # that are remembered, so that each is logged once
_PLACE = re.compile(r"\[\d+\]")
log = structlog.get_logger(__name__)


class UnknownFields:
    """The unknown fields of one route.

    Args:
        route: Its path.
        strict: They are refused.
        metrics: Count them.
    """

    def __init__(self, route: str, metrics: GatewayMetrics, *, strict: bool) -> None:
        self._route = route
        self._metrics = metrics
        self._strict = strict
        self._seen: set[str] = set()

    def tell(self, names: Sequence[str], request_id: str) -> None:
        """Counts and logs unknown fields; a name is logged once, whatever message or tool it is in.

        Raises:
            InvalidRequest: Unknown fields are refused; names the first.
        """
        if not names:
            return
        if self._strict:
            raise InvalidRequest(f"unknown field `{names[0]}` (RYZ_STRICT_FIELDS)", param=names[0])
        self._metrics.unknown_fields.inc(len(names))
        new = list(dict.fromkeys(name for name in names if _PLACE.sub("[]", name) not in self._seen))
        new = new[: _MAX_NAMES - len(self._seen)]
        if new:
            self._seen.update(_PLACE.sub("[]", name) for name in new)
            log.warning("unknown fields are ignored", request_id=request_id, route=self._route, fields=new)
