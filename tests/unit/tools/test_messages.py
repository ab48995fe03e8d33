"""The check that troubleshooting explains what callers may get: it finds reasons however they are given."""

import ast

from tools.docs.manual.messages import missing, reasons

SOURCE = """
AWAY = "store_away"


class StoreAway(Unavailable):
    code = "unavailable"


raise Unavailable("text", reason="no_router")
raise errors.StoreAway("text", reason=AWAY)
raise HttpRefusal(403, "read_only_key", "text")
Fault(431, "too_many", "text")
limits.quota(most, reason="too_much")
log.warning("text", reason="no_refusal")
raise Unavailable("text", reason=other.reason)
"""


def test_reasons_are_found() -> None:
    assert reasons([ast.parse(SOURCE)]) == {
        "no_router", "store_away", "read_only_key", "too_many", "too_much",
    }  # fmt: skip


def test_what_a_page_lacks() -> None:
    assert missing("`no_router`: start one", ["no_router", "store_away"]) == ["store_away"]
