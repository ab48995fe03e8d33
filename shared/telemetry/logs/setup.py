"""Log lines in JSON or for the console, with service, instance, and the current request and trace.

`bind_request` (`request_ids.py`) names the request of the running task. Services use `configure_logging`;
processes without settings, such as ranks, use `write_lines`.
"""

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from shared.telemetry.logs.limits import LogLimiter
from shared.telemetry.logs.lines import MAX_FRAMES, render_line
from shared.telemetry.request_ids import add_request

if TYPE_CHECKING:  # ranks do not need it, and its import takes long
    from shared.settings import CommonSettings


def configure_logging(
    settings: "CommonSettings", service: str, more: Mapping[str, str] | None = None
) -> LogLimiter:
    """Sets up logging for a service as its settings say; returns what limits and counts its lines.

    Args:
        settings: Those of the service.
        service: Its name.
        more: Further fields of each line.
    """
    names = {"service": service, "instance": settings.instance_id, **(more or {})}
    return write_lines(names, level=settings.log_level, form=settings.log_format, burst=settings.log_burst)


def write_lines(names: Mapping[str, str | int], *, level: str, form: str, burst: int) -> LogLimiter:
    """Sets up logging of this process to stderr, with the standard library's loggers and warnings.

    Args:
        names: Fields of each line.
        level: The lowest level to log: `debug`, `info`, `warning` or `error`.
        form: `json` or `console`.
        burst: Lines of one kind in an interval; 0: all.

    Returns:
        What limits and counts the lines.
    """
    least = getattr(logging, level.upper(), logging.INFO)
    limiter = LogLimiter(burst)

    def add_names(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        for key, value in names.items():
            event.setdefault(key, value)
        return event

    before: list[structlog.typing.Processor] = [
        add_request,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_names,
    ]
    last: list[structlog.typing.Processor]
    if form == "json":
        # traces leave out local variables, which contain prompts, keys and passwords
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=MAX_FRAMES)
        last = [structlog.processors.ExceptionRenderer(tracebacks), render_line]
    else:
        last = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    structlog.configure(
        processors=[limiter, *before, *last],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # whole lines: spans are written by a thread
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(limiter.filter)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=before,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(least, logging.INFO))
    logging.captureWarnings(True)
    return limiter
