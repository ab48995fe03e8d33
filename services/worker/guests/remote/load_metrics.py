"""Reads a server's load from its `/metrics`, by the names that servers of this field use."""

import re
from collections.abc import Mapping
from typing import Final

# the first name of each that a server has; lines of several models are added up, shares are the highest
_NAMES: Final[Mapping[str, tuple[bytes, ...]]] = {
    "running": (
        b"vllm:num_requests_running",
        b"llamacpp:requests_processing",
        b"sglang:num_running_reqs",
        b"tgi_batch_current_size",
    ),
    "waiting": (
        b"vllm:num_requests_waiting",
        b"llamacpp:requests_deferred",
        b"sglang:num_queue_reqs",
        b"tgi_queue_size",
    ),
    "kv_used": (
        b"vllm:kv_cache_usage_perc",
        b"vllm:gpu_cache_usage_perc",
        b"llamacpp:kv_cache_usage_ratio",
        b"sglang:token_usage",
    ),
}
_SHARES = frozenset({"kv_used"})
_LINE: Final = rb"^%s(?:\{[^\n]*\})?[ \t]+([-+0-9.eE]+)"
_PATTERNS: Final = {
    field: [re.compile(_LINE % re.escape(name), re.MULTILINE) for name in names]
    for field, names in _NAMES.items()
}


def read_load(metrics: bytes) -> dict[str, float]:
    """Return `running`, `waiting` and `kv_used` (a share), as far as the server reports them.

    Its own parser of the few lines: those of the format's library take tens of milliseconds for what a large
    server says, and this is read every other second.
    """
    found = dict[str, float]()
    for field, patterns in _PATTERNS.items():
        for pattern in patterns:
            values = [value for text in pattern.findall(metrics) if (value := _number(text)) is not None]
            if values:
                found[field] = max(values) if field in _SHARES else sum(values)
                break
    return found


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
