"""Headers of answers that every transport tells its callers, as far as an answer has them."""

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
