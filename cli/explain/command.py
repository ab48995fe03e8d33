"""`ryz explain`: shows where the time of a request went; `course.py` puts it together."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cli.command_groups import BrokerUrl, JsonOption, StateDirectory
from cli.stack.state import DEFAULT_DIR

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from cli.explain.course import Course, GroupChange


def explain(
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST_ID",
            help="The id of an answer or a request, or what it begins with, such as the X-Request-Id sent.",
        ),
    ],
    *,
    as_json: JsonOption = False,
    nats_url: BrokerUrl = "",
    state_dir: StateDirectory = DEFAULT_DIR,
) -> None:
    """Show where the time of a request went, hop by hop, also if it failed or moved to another group.

    Services keep the newest requests (RYZ_EXPLAIN_REQUESTS). Exit code 1 when none knows the request.
    """
    import json  # noqa: PLC0415 (keeps `ryz --help` quick)

    from cli.console import fail, out  # noqa: PLC0415
    from services.gateway.answering.resumption.resume_token import request_id_of  # noqa: PLC0415
    from shared.telemetry.spans.trace_ids import trace_id_of_request  # noqa: PLC0415

    wanted = request_id_of(request_id)
    if len(wanted) < 4:  # before what asks is imported, which takes seconds on a busy machine
        fail("Give at least four characters of the request's id.", exit_code=2)
    found = _ask_courses(wanted, nats_url, state_dir)
    if not found:
        fail(
            f"No service knows a request that begins with {wanted!r}. Each keeps the newest ones only "
            "(RYZ_EXPLAIN_REQUESTS), and none from before its start."
        )
    if as_json:
        requests = [
            asdict(one) | {"total_ms": one.total_ms, "trace_id": trace_id_of_request(one.request_id)}
            for one in found
        ]
        print(json.dumps({"requests": requests}))
        return
    for course in found:
        out.print(_table(course))
        for loss in course.interruptions:
            out.print(describe_interruption(loss), markup=False, soft_wrap=True)
        trace_id = trace_id_of_request(course.request_id)
        out.print(f"trace {trace_id}, unless the caller sent a `traceparent` of its own", soft_wrap=True)


def _ask_courses(request_id: str, nats_url: str, state_dir: "Path") -> "list[Course]":
    """Return the courses of the requests whose ids begin so; fail where no broker answers."""
    import asyncio  # noqa: PLC0415
    import logging  # noqa: PLC0415

    import structlog  # noqa: PLC0415

    from cli.console import fail  # noqa: PLC0415
    from cli.explain.course import courses  # noqa: PLC0415
    from cli.explain.query import query_explanations  # noqa: PLC0415
    from cli.stack.state import StateDir  # noqa: PLC0415
    from cli.status.query import find_broker, no_broker  # noqa: PLC0415
    from shared.errors import InvalidRequest, RyzError  # noqa: PLC0415

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    stack_dir = StateDir(state_dir)
    url = find_broker(nats_url, stack_dir)
    try:
        return courses(asyncio.run(query_explanations(url, stack_dir, request_id)))
    except RyzError as error:
        refused = isinstance(error, InvalidRequest)  # such as by a wrong password
        fail(f"{error.message}." if refused else no_broker(url))


def describe_interruption(loss: "GroupChange") -> str:
    """Says in a sentence what a loss did to the request."""
    went_on = f"group {loss.group} went on" if loss.group else "it was sent to another group"
    if loss.pause_ms is None:
        pause = "no record says when its next token came"
    else:
        pause = f"without tokens for {loss.pause_ms:.1f} ms in between"
    return (
        f"group {loss.lost} was lost ({loss.reason}) and had sent nothing from {loss.begins_ms:.1f} ms on; "
        f"{went_on}, {pause}"
    )


def _table(course: "Course") -> "RenderableType":
    from datetime import datetime  # noqa: PLC0415

    from rich.table import Table  # noqa: PLC0415

    from cli.explain.course import longest  # noqa: PLC0415

    began = datetime.fromtimestamp(course.began_us / 1e6).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    first = "" if course.first_frame_ms is None else f", first text after {course.first_frame_ms:.1f} ms"
    table = Table(
        title=f"{course.request_id}, {began}, {course.total_ms:.1f} ms{first}",
        title_justify="left",
        show_edge=False,
        box=None,
        pad_edge=False,
    )
    for name in ("at ms", "ms", "share"):
        table.add_column(name, justify="right")
    for name in ("what", "noted by", "details"):
        table.add_column(name)
    bold, total = longest(course.spans), course.total_ms
    for index, span in enumerate(course.spans):
        details = " ".join(f"{name}={value}" for name, value in span.data.items() if value != "")
        table.add_row(
            f"{span.begins_ms:.1f}",
            f"{span.took_ms:.1f}",
            f"{span.took_ms / total:.0%}" if total else "",
            span.what,
            f"{span.service}{f', attempt {span.attempt}' if span.attempt else ''}",
            details,
            style="bold" if index in bold else "",
        )
    return table
