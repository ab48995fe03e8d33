"""What the time of a request is spent on, by the moment that ends it: words of traces and `ryz explain`."""

from collections.abc import Mapping

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
_PARTS = ("linears_s", "attention_s", "collectives_s", "sampling_s", "masks_s")


def computed_between(
    first: Mapping[str, str | int | float], last: Mapping[str, str | int | float]
) -> dict[str, str | int | float]:
    """Returns the steps, their time on rank 0 in ms, and shares of that time, of all requests together.

    Args:
        first: The totals at a sequence's admission.
        last: Those at its last token.
    """
    grown = {
        name: value - before
        for name, value in last.items()
        if isinstance(value, int | float) and isinstance(before := first.get(name), int | float)
    }
    shown: dict[str, str | int | float] = {"steps": int(grown.get("steps", 0))}
    compute_s = grown.get("compute_s", 0.0)
    if compute_s > 0:
        shown["computed_ms"] = round(compute_s * 1000, 3)
        shown |= {name[:-2]: f"{grown.get(name, 0.0) / compute_s:.0%}" for name in _PARTS if grown.get(name)}
    return shown
