"""What the time of a request is spent on, by the moment that ends it: words of traces and `ryz explain`."""

OFFERED_AGAIN = "offered again"  # the moment of a request that waits: the last time that it was offered
# by service and moment: what the time before the moment was spent on
SPANS = {
    ("gateway", "read"): "key, limits and body",
    ("gateway", "published"): "body into a request",
    ("gateway", OFFERED_AGAIN): "wait for a group",
    ("gateway", "last frame"): "last frame to the gateway",
    ("gateway", "answered"): "answer to the client",
    ("router", "routed"): "to the router",
    ("router", "decided"): "choice of a group",
    ("router", "refused"): "choice of a group: none",
    ("worker", "taken"): "to the leader",
    ("worker", "history"): "history of the session",
    ("worker", "tokenized"): "template and tokens",
    ("worker", "queued"): "look-up of stored KV",
    ("worker", "fetching"): "queue",
    ("worker", "fetched"): "fetch of stored KV",
    ("worker", "computing"): "queue",
    ("worker", "first token"): "prefill",
    ("worker", "last token"): "decode",
    ("worker", "done"): "end of the turn",
    ("worker", "failed"): "until it failed",
}
AGAIN = "out of the batch"  # until a sequence is admitted once more
