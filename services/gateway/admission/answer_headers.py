"""Headers of answers that every transport tells its callers, as far as an answer has them.

`READABLE_HEADERS` are all of our own over HTTP, which pages of allowed origins may read as well.
"""

REPLAYED = (b"idempotent-replayed", b"true")
SHOWN_HEADERS = (
    b"x-request-id",
    b"x-session-id",
    b"x-stream-id",
    b"x-ryz-group",
    b"x-ryz-session",
    b"x-ryz-ignored",
    REPLAYED[0],
    b"retry-after",
)
READABLE_HEADERS = sorted(
    {
        *(name.decode() for name in SHOWN_HEADERS),
        "content-disposition",
        "openai-processing-ms",
        "request-id",
        *(
            f"x-ratelimit-{what}-{unit}"
            for what in ("limit", "remaining", "reset")
            for unit in ("requests", "tokens")
        ),
        "x-ryz-kv",
        "x-ryz-reason",
        "x-ryz-route",
        "x-should-retry",
    }
)
