"""Connects commands about tenants and keys with the KV state service, and turns refusals into exit codes."""

import asyncio
import getpass
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

import structlog

from cli.command_groups import BrokerOptions
from cli.console import fail
from cli.stack.state import StateDir
from cli.status.query import connect_broker, find_broker, no_broker
from shared.bus.nats import NatsBus
from shared.client.calls.accounts_client import AccountsClient
from shared.errors import AccountNotFound, Conflict, InvalidRequest, RyzError

T = TypeVar("T")
FAILED, WRONG_USAGE, NONE_SUCH, KNOWN_ALREADY = 1, 2, 3, 4


def on_accounts(common: BrokerOptions, work: Callable[[AccountsClient], Awaitable[T]]) -> T:
    """Run something with a client on the broker that the options name; fail with a sentence."""
    return on_broker(common, lambda bus: work(AccountsClient(bus, f"cli:{_user()}"[:128])))


def on_broker(common: BrokerOptions, work: Callable[[NatsBus], Awaitable[T]]) -> T:
    """Run something with a connection to the broker that the options name; fail with a sentence."""

    async def run() -> T:
        state_dir = StateDir(common.state_dir)
        url = find_broker(common.nats_url, state_dir)
        try:
            bus = await connect_broker(url, state_dir, "ryz tenants")
        except InvalidRequest as error:
            fail_with(error)
        except RyzError:
            fail(no_broker(url))
        try:
            return await work(bus)
        except RyzError as error:
            fail_with(error)
        finally:
            await bus.close()

    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    return asyncio.run(run())


def fail_with(error: RyzError) -> NoReturn:
    """Fail with the message of an error."""
    code = FAILED
    if isinstance(error, AccountNotFound):
        code = NONE_SUCH
    elif isinstance(error, Conflict) and error.data.get("reason") == "account_exists":
        code = KNOWN_ALREADY
    elif isinstance(error, InvalidRequest):
        code = WRONG_USAGE
    fail(f"{error.message[:1].upper()}{error.message[1:]}.", code)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user has no name
        return "unknown"
