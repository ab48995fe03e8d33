"""`ryz tenants erase`: erases the data of a tenant over the HTTP API, and prints the receipt."""

import sys
import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.command_groups import GatewayOptions
from cli.command_options import with_options

STEP_S = 30.0  # of the gateway's work between two answers
MARGIN_S = 30.0
INCOMPLETE = 5
_COUNTS = (
    "batches", "files", "file_bytes", "sessions", "responses", "kv_blocks", "kv_bytes", "usage_sums",
    "usage_records",
)  # fmt: skip


@with_options
def erase(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose data is erased.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, max=86_400.0, help="Go on for at most so many seconds.")
    ] = 600.0,
    common: GatewayOptions,
) -> None:
    """Erase sessions, KV blocks, stored responses, batches, files and the name in usage of a tenant.

    A receipt is printed. Suspend the tenant first, or revoke its keys: what it makes meanwhile is not
    erased. The key has to be an admin's: for the stack of a state directory it is that in its `admin.key`,
    where none is given. Exit code 5: something is left, and the command can be given again.

    Examples:
        ryz tenants erase acme
        ryz tenants erase acme --yes --json
    """
    from cli.console import fail, out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.http_api import HttpApi, find_url  # noqa: PLC0415
    from cli.keys.kept_admin_key import read_kept  # noqa: PLC0415
    from cli.stack.state import DEFAULT_DIR, StateDir  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    if not yes:
        if not sys.stdin.isatty():
            fail("Erasing cannot be undone: say `--yes` where no one can be asked.", 2)
        typer.confirm(f"Erase all sessions, responses, batches and files of tenant {tenant!r}?", abort=True)
    stack, key = StateDir(common.state_dir or DEFAULT_DIR), common.api_key
    if not key and not common.url and stack.read() is not None:  # else it might go to another stack
        key = read_kept(stack.path)
    api = HttpApi(find_url(common.url, common.state_dir, key), key, timeout_s=STEP_S + MARGIN_S)
    total: dict[str, Any] = {}
    until = time.monotonic() + timeout_s
    try:
        while not total.get("complete") and (not total or time.monotonic() < until):
            path = f"/v1/manage/tenants/{quote(tenant, safe='')}/erase"
            total = _added(total, api.ask("POST", path, params={"within": f"{STEP_S:g}"}).json())
    finally:
        api.close()
    if common.as_json:
        print(json_text(total))
    else:
        out.print(receipt_words(total), markup=False, soft_wrap=True)
    if not total["complete"]:
        raise typer.Exit(INCOMPLETE)


def receipt_words(receipt: dict[str, Any]) -> str:
    """Return the receipt for people."""
    from shared.messages.tenants.accounts import ERASED_TENANTS  # noqa: PLC0415 (keeps `ryz --help` quick)

    lines = [
        f"Tenant {receipt['tenant']}: erased {receipt['sessions']} sessions, "
        f"{receipt['responses']} responses, "
        f"{receipt['kv_blocks']} KV blocks ({receipt['kv_bytes']:,} bytes), {receipt['batches']} batches, "
        f"{receipt['files']} files ({receipt['file_bytes']:,} bytes).",
        f"Its name and keys are off {receipt['usage_sums']} daily sums of usage and "
        f"{receipt['usage_records']:,} records of requests; the counts stay, as usage of `{ERASED_TENANTS}`.",
        "Its record, its keys and the entries of the audit log stay.",
    ]
    if not receipt["complete"]:
        lines.append(
            f"Something is left ({receipt['batches_left']} batches have not ended): give the command again."
        )
    return "\n".join(lines)


def _added(total: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """The receipts of two steps as one."""
    if not total:
        return step
    counts = {name: total[name] + step[name] for name in _COUNTS}
    return step | counts | {"began_s": total["began_s"]}
