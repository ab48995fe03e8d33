"""`ryz tenants`: make, show, change, suspend, remove and erase tenants; prices, usage, the audit log."""

from typing import Annotated

import typer

from cli.command_groups import BrokerOptions, command_group
from cli.command_options import with_options
from cli.tenants.erase import erase
from cli.tenants.prices import price
from cli.tenants.shares import shares
from cli.tenants.tenant_options import TenantOptions
from cli.tenants.usage import usage
from cli.tenants.values import LimitOptions

app = command_group(
    "Make, change, suspend, remove and erase tenants; prices of models, usage (docs/tenants.md). "
    "Exit codes: 1 it failed, 2 wrong usage, 3 there is no such tenant, 4 there is one already.",
)
app.command("price")(price)
app.command("usage")(usage)
app.command("erase")(erase)
app.command("shares")(shares)
TenantName = Annotated[
    str, typer.Argument(metavar="TENANT", help="1 to 64 letters, digits, - and _.", show_default=False)
]


@app.command("create")
@with_options
def create(
    tenant: TenantName, *, options: TenantOptions, limits: LimitOptions, common: BrokerOptions
) -> None:
    """Make a tenant.

    Examples:
        ryz tenants create acme --requests-per-minute 600 --tokens-per-month 50000000
        ryz tenants create lab --model smollm2-135m --time-zone Europe/Berlin
    """
    from cli.tenants.work import create_tenant  # noqa: PLC0415 (keeps `ryz --help` quick)

    create_tenant(tenant, options, limits, common)


@app.command("list")
@with_options
def list_tenants(common: BrokerOptions) -> None:
    """List the tenants with their keys and limits."""
    from cli.tenants.work import show_all  # noqa: PLC0415

    show_all(common)


@app.command("show")
@with_options
def show(tenant: TenantName, *, common: BrokerOptions) -> None:
    """Show a tenant."""
    from cli.tenants.work import show_tenant  # noqa: PLC0415

    show_tenant(tenant, common)


@app.command("set")
@with_options
def set_tenant(
    tenant: TenantName, *, options: TenantOptions, limits: LimitOptions, common: BrokerOptions
) -> None:
    """Change a tenant; what is not given stays as it is.

    Examples:
        ryz tenants set acme --running 8 --tokens-per-day 0
    """
    from cli.tenants.work import change_tenant  # noqa: PLC0415

    change_tenant(tenant, options, limits, common)


@app.command("suspend")
@with_options
def suspend(
    tenant: TenantName,
    *,
    end_streams: Annotated[
        bool, typer.Option("--end-streams", help="End answers under way as well, with an error that says so.")
    ] = False,
    common: BrokerOptions,
) -> None:
    """Refuse a tenant's requests until it is resumed; its keys and data stay."""
    from cli.tenants.work import suspend_tenant  # noqa: PLC0415

    suspend_tenant(tenant, common, suspended=True, end_streams=end_streams)


@app.command("resume")
@with_options
def resume(tenant: TenantName, *, common: BrokerOptions) -> None:
    """Take requests of a suspended tenant again."""
    from cli.tenants.work import suspend_tenant  # noqa: PLC0415

    suspend_tenant(tenant, common, suspended=False)


@app.command("delete")
@with_options
def delete(
    tenant: TenantName,
    *,
    with_keys: Annotated[bool, typer.Option("--with-keys", help="Revoke its keys first.")] = False,
    common: BrokerOptions,
) -> None:
    """Remove a tenant and its limits. Its sessions, files and usage stay."""
    from cli.tenants.work import delete_tenant  # noqa: PLC0415

    delete_tenant(tenant, common, with_keys=with_keys)


@app.command("audit")
@with_options
def audit(
    *,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many entries.")] = 50,
    before: Annotated[int, typer.Option(min=0, help="Those with smaller numbers.  [default: the newest]",
                                        show_default=False)] = 0,
    common: BrokerOptions,
) -> None:  # fmt: skip
    """List who changed which tenant, key or price, the newest first."""
    from cli.tenants.work import show_audit  # noqa: PLC0415

    show_audit(count, before, common)
