"""What a request asked for and its answer is made without: fields, tools, blocks of text.

Callers see it in the header `X-Ryz-Ignored`, and in its forms on gRPC, NATS and WebSockets; it is counted and
logged once.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import structlog

from services.gateway.admission.errors.refusals import Headers
from services.gateway.metrics import GatewayMetrics
from shared.errors import InvalidRequest

Kind = Literal["field", "tool", "block"]


MAX_SHOWN = 16  # entries of a header


_LONGEST = 64  # characters of a name


HEADER = b"x-ryz-ignored"


_MAX_NAMES = 256  # that are remembered, so that each is logged once


_PLACE = re.compile(r"\[\d+\]")


log = structlog.get_logger(__name__)


class LeftOut(NamedTuple):
    """One part of a body that was left out.

    Attributes:
        name: Its place in the body, such as `tools[2]`.
        kind: What it is, for the counter.
        why: A few words for the caller, such as the type of a tool; empty: the field is not known.
    """

    name: str
    kind: Kind = "field"
    why: str = ""

    @property
    def shown(self) -> str:
        """The entry in the header."""
        name = self.name[:_LONGEST].replace(",", "_")
        return f"{name} ({self.why[:_LONGEST].replace(',', '_')})" if self.why else name


def header_text(parts: Sequence[LeftOut]) -> str:
    """The value of `X-Ryz-Ignored`: the entries with commas between them, `MAX_SHOWN` at most."""
    shown = [part.shown for part in parts[:MAX_SHOWN]]
    if len(parts) > MAX_SHOWN:
        shown.append(f"and {len(parts) - MAX_SHOWN} more")
    text = ", ".join(shown)
    return "".join(character if " " <= character <= "~" else "_" for character in text)


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
