"""The answer to a call that failed."""

from typing import Any

from shared.messages.base import Wire, check_depth


class ErrorReply(Wire, frozen=True, kw_only=True):
    """Answer to a call that failed, in place of the expected one. See the error codes."""

    error: str
    message: str
    data: dict[str, Any] = {}

    def __post_init__(self) -> None:
        check_depth(self.data)
