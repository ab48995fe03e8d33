"""Log lines in JSON or for the console, with service, instance, and the current request and trace.

`bind_request` sets the ids of request and trace for the running task and the tasks that it starts. Services
use `configure_logging`; processes without settings, such as ranks, use `write_lines`.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:  # ranks do not need it, and its import takes long
    from shared.settings import CommonSettings


def configure_logging(settings: "CommonSettings", service: str) -> None:
    """Sets up logging for a service as its settings say."""
    names = {"service": service, "instance": settings.instance_id}
    write_lines(names, level=settings.log_level, form=settings.log_format)


def write_lines(names: Mapping[str, str | int], *, level: str = "info", form: str = "json") -> None:
    """Sets up logging of this process to stderr, with the standard library's loggers and warnings.

    Args:
        names: Fields of each line.
        level: The lowest level to log: `debug`, `info`, `warning` or `error`.
        form: `json` or `console`.
    """
    least = getattr(logging, level.upper(), logging.INFO)

    def add_names(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        for key, value in names.items():
            event.setdefault(key, value)
        return event

    before: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_names,
    ]
    last: list[structlog.typing.Processor]
    if form == "json":
        # traces leave out local variables, which contain prompts, keys and passwords
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        last = [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
    else:
        last = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    structlog.configure(
        processors=[*before, *last],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
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


@contextlib.contextmanager
def bind_request(request_id: str, trace_id: str = "") -> Iterator[None]:
    """Adds the ids of a request and its trace to the log lines inside the block."""
    values = {"request_id": request_id} | ({"trace_id": trace_id} if trace_id else {})
    with structlog.contextvars.bound_contextvars(**values):
        yield
