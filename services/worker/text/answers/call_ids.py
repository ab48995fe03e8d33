"""Ids of tool calls: the same on every group that computes the answer."""

import hashlib
from collections.abc import Callable


def call_ids(request_id: str, choice: int) -> Callable[[int], str]:
    """Returns the function from the number of a call to its id."""

    def call_id(index: int) -> str:
        digest = hashlib.blake2b(f"{request_id}/{choice}/{index}".encode(), digest_size=12)
        return f"call_{digest.hexdigest()}"

    return call_id
