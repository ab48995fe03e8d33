"""`ryz tenants usage`: what tenants have used, each request once."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.command_groups import BrokerOptions
from cli.command_options import with_options

if TYPE_CHECKING:
    from rich.table import Table

    from shared.usage.grouping import Row


@with_options
def usage(
    tenant: Annotated[str, typer.Argument(metavar="[TENANT]", help="Only this tenant's.")] = "",
    *,
    since: Annotated[str, typer.Option(help="The first day, as 2026-01-31.  [default: all]")] = "",
    until: Annotated[str, typer.Option(help="The last day.  [default: today]")] = "",
    by: Annotated[str, typer.Option(help="A list with commas of day, tenant, key, model.")] = "tenant",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    common: BrokerOptions,
) -> None:
    """Show tokens and money by day, tenant, key or model. Days are those of each tenant's time zone.

    Money is in the currency of the prices (`ryz tenants`), and in millionths of it with --json and --csv.

    Examples:
        ryz tenants usage acme --since 2026-01-01 --by day,model
    """
    import json  # noqa: PLC0415 (keeps `ryz --help` quick)

    from cli.console import fail, out  # noqa: PLC0415
    from cli.tenants.asking import on_broker  # noqa: PLC0415
    from shared.client.calls.usage_client import UsageClient  # noqa: PLC0415
    from shared.errors import InvalidRequest  # noqa: PLC0415
    from shared.usage.grouping import check_day, csv_of, group_sums, groups_of  # noqa: PLC0415

    if as_csv and common.as_json:
        fail("Give --json or --csv, not both.", exit_code=2)
    try:
        groups = groups_of(by)
        check_day(since, "--since")
        check_day(until, "--until")
    except InvalidRequest as error:
        fail(f"{error.message}.", exit_code=2)
    report = on_broker(common, lambda bus: UsageClient(bus).read_sums(tenant, since, until))
    rows = group_sums(report.sums, groups)
    if common.as_json:
        print(json.dumps({"currency": report.currency, "data": rows}))
    elif as_csv:
        print(csv_of(rows, groups), end="")
    elif not rows:
        out.print("Nothing was used in that time.", markup=False)
    else:
        out.print(table_of(rows, report.currency))


def table_of(rows: "list[Row]", currency: str) -> "Table":
    """Returns the rows as a table, with money where prices are given."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from shared.usage.grouping import COUNTED  # noqa: PLC0415

    names = [name for name in rows[0] if name not in COUNTED]
    shown = ["requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"]
    if any(row["embedded_tokens"] for row in rows):
        shown.append("embedded_tokens")
    table = Table(box=None)
    for name in names:
        table.add_column(name.removesuffix("_id"))
    for name in shown:
        table.add_column(name.removesuffix("_tokens"), justify="right")
    priced = any(row["money"] for row in rows)
    if priced:
        table.add_column(currency or "money", justify="right")
    for row in rows:
        cells = [Text(str(row[name]) or "-") for name in names] + [Text(f"{row[name]:,}") for name in shown]
        if priced:
            whole, part = divmod(int(row["money"]), 1_000_000)
            cells.append(Text(f"{whole:,}.{part:06d}"))
        table.add_row(*cells)
    return table
