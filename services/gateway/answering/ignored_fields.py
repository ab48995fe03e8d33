"""Refuses what is left out of the bodies of a route, or tells it: a header, a count, a line in the log."""

import re
from collections.abc import Sequence

import structlog

from services.gateway.admission.refusals import Headers
from services.gateway.field_policy.left_out import LeftOut, header_text
from services.gateway.metrics import GatewayMetrics
from shared.errors import InvalidRequest

HEADER = b"x-ryz-ignored"
_MAX_NAMES = 256  # that are remembered, so that each is logged once
_PLACE = re.compile(r"\[\d+\]")
log = structlog.get_logger(__name__)


class IgnoredFields:
    """The fields, tools and blocks of bodies that one route leaves out.

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

    def tell(self, unknown: Sequence[str], left_out: Sequence[LeftOut], request_id: str) -> Headers:
        """Counts and logs what is left out; a name is logged once, whatever message or tool it is in.

        Args:
            unknown: Names of unknown fields.
            left_out: Fields that are known and not served, and tools.
            request_id: Of the request.

        Returns:
            Headers for the answer; none if nothing is left out.

        Raises:
            InvalidRequest: Such fields are refused; names the first.
        """
        if not unknown and not left_out:
            return []
        if self._strict:
            self._refuse(unknown, left_out)
        self._metrics.unknown_fields.inc(len(unknown))
        for part in left_out:
            self._metrics.left_out.labels(part.kind).inc()
        names = [*unknown, *(part.shown for part in left_out)]
        new = list(dict.fromkeys(name for name in names if _PLACE.sub("[]", name) not in self._seen))
        new = new[: _MAX_NAMES - len(self._seen)]
        if new:
            self._seen.update(_PLACE.sub("[]", name) for name in new)
            log.warning("fields are ignored", request_id=request_id, route=self._route, fields=new)
        return [(HEADER, header_text([*left_out, *map(LeftOut, unknown)]).encode())]

    def _refuse(self, unknown: Sequence[str], left_out: Sequence[LeftOut]) -> None:
        if unknown:
            raise InvalidRequest(f"unknown field `{unknown[0]}` (RYZ_STRICT_FIELDS)", param=unknown[0])
        for part in left_out:
            if part.kind != "block":  # the caller's text is understood, whether or not it is in the prompt
                raise InvalidRequest(
                    f"`{part.name}` is not served: {part.why} (RYZ_STRICT_FIELDS)", param=part.name
                )
