"""Headers of answers that every transport tells its callers, as far as an answer has them.

`READABLE_HEADERS` are all of our own over HTTP, which pages of allowed origins may read as well.
"""

REPLAYED = (b"idempotent-replayed", b"true")
RATE_HEADERS = tuple(
    f"x-ratelimit-{what}-{unit}".encode()
    for unit in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)
SHOWN_HEADERS = (
    b"x-request-id",
    b"x-session-id",
    b"x-stream-id",
    b"x-ryz-group",
    b"x-ryz-session",
    b"x-ryz-ignored",
    REPLAYED[0],
    b"retry-after",
    *RATE_HEADERS,
    b"x-ryz-limits",
)
READABLE_HEADERS = sorted(
    {
        *(name.decode() for name in SHOWN_HEADERS),
        "content-disposition",
        "openai-processing-ms",
        "request-id",
        "x-ryz-kv",
        "x-ryz-reason",
        "x-ryz-route",
        "x-should-retry",
    }
)
