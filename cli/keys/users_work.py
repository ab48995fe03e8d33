"""What `ryz keys` does for bus users: has our own broker know of a change at once, and prints variables."""

import time
from collections.abc import Awaitable
from typing import TypeVar

from cli.bus_users.store import give_broker, import_users, users_of
from cli.command_groups import BrokerOptions
from cli.console import err, out
from cli.stack.state import StackState, StateDir
from cli.status.query import find_broker
from cli.tenants.asking import on_accounts
from cli.visible import json_text
from shared.accounts.bus_users import caller_of_record
from shared.accounts.forms import made_form
from shared.bus import nats_conf
from shared.bus.accounts import with_user
from shared.client.calls.accounts_client import AccountsClient, MadeKey

T = TypeVar("T")


async def with_broker(client: AccountsClient, common: BrokerOptions, change: Awaitable[T]) -> T:
    """Make a change, and then have our own broker read its users again if they have changed."""
    done = await change
    if _own_stack(common) is not None:
        give_broker(StateDir(common.state_dir), await client.read(), time.time())
    return done


def print_made_user(made: MadeKey, common: BrokerOptions) -> None:
    """Print the variables of a service that connects as a bus user."""
    own, caller = _own_stack(common), caller_of_record(made.record)
    url = own.nats_url if own else find_broker(common.nats_url, StateDir(common.state_dir))
    url = with_user(url.partition(",")[0].strip(), caller.user, made.text)
    if common.as_json:
        print(json_text(made_form(made.record, made.text, closed_api=False) | {"nats_url": url}))
    else:
        lines = [f"RYZ_NATS_URL={url}", f"RYZ_NATS_TENANT={caller.tenant}"]
        out.print("\n".join(lines), markup=False, soft_wrap=True)
        err.print("This is the only time that the password is shown.", style="dim")
    if own is None:
        err.print(
            "`ryz up` does not run that broker here: give it what `ryz keys broker-config` prints, in the "
            "place of deploy/nats.conf, and send it SIGHUP.",
            markup=False,
            soft_wrap=True,
        )


def print_broker_config(common: BrokerOptions) -> None:
    """Print the configuration of a broker with all bus users."""

    async def work(client: AccountsClient) -> str:
        await import_users(client, StateDir(common.state_dir))
        users = users_of(await client.read(), time.time())
        return nats_conf.render({user.caller: user.password_hash for user in users})

    print(on_accounts(common, work), end="")


def _own_stack(common: BrokerOptions) -> StackState | None:
    """Return the stack whose broker is changed, if that is one of our own."""
    state = None if common.nats_url else StateDir(common.state_dir).read()
    return state if state is not None and state.nats_urls else None
