"""Pages of other origins may read every header of our own: what was recorded has no other ones."""

import re

from services.gateway.admission.answer_headers import READABLE_HEADERS
from tests.contract.corpus import recorded_files
from tests.contract.corpus.tables.all_tables import TABLES

# those of HTTP, which tell a page nothing or which browsers always show, and those of other transports
NOT_OURS = {
    *("allow", "cache-control", "connection", "content-length", "content-type", "date", "transfer-encoding"),
    *("upgrade", "vary", "www-authenticate", "x-accel-buffering", "x-content-type-options"),
    *("sec-websocket-accept", "sec-websocket-protocol"),
    *("nats-service-error", "nats-service-error-code", "ryz-status"),
}


def test_every_header_that_was_recorded_is_readable() -> None:
    lines = [line for one in TABLES for lines in recorded_files.read(one.name).values() for line in lines]
    heads = [found[1].lower() for line in lines if (found := re.match(r"< ([A-Za-z-]+): ", line))]
    ours = {name for name in heads if not name.startswith("access-control-")} - NOT_OURS
    assert len(ours) > 15
    assert ours <= set(READABLE_HEADERS)
