"""Replaces structlog in the distribution: records go to Python's `logging`, fields after the text.

So a service that uses the client needs no second logging library, and sees the client's records where it
wants them.
"""

import logging
from typing import Any


class StandardLogger:
    """A logger that takes an event and fields."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        """Logs at that level, as the other methods do at theirs."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """See `debug`."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """See `debug`."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """See `debug`."""
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Logs an error with the exception that is being handled."""
        self._log(logging.ERROR, event, fields | {"exc_info": True})

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        exc_info = fields.pop("exc_info", None)
        text = " ".join((event, *(f"{name}={value!r}" for name, value in fields.items())))
        self._logger.log(level, "%s", text, exc_info=exc_info)


class typing:
    """The types of structlog that the client names."""

    FilteringBoundLogger = StandardLogger


def get_logger(name: str) -> StandardLogger:
    """Returns the logger of a module."""
    return StandardLogger(name)
