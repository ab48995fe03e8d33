"""Keeps the users of our own broker in step with the records while the stack runs.

`ryz keys` has the broker read a change at once; this finds those that come over HTTP or from elsewhere, and
users that expire.
"""

import asyncio
import time
from collections.abc import Awaitable

from cli.bus_users.store import give_broker, import_users
from cli.console import CommandError, err
from cli.stack.state import StateDir
from shared.accounts.register import AccountRegister
from shared.bus.nats import NatsBus
from shared.client.calls.accounts_client import AccountsClient
from shared.client.calls.accounts_sync import read_accounts
from shared.errors import RyzError

POLL_S = 1.0
_WAIT_S = 5.0


class BrokerUsers:
    """Gives the broker the users that have records.

    Args:
        state_dir: The state directory of the stack.
        broker_url: Of our own broker, with the user of commands; empty: it is another one, whose users we
            do not write.
    """

    def __init__(self, state_dir: StateDir, broker_url: str) -> None:
        self._state_dir = state_dir
        self._broker_url = broker_url
        self._bus: NatsBus | None = None
        self._register = AccountRegister()
        self._problem = ""
        self._keeping: asyncio.Task[None] | None = None

    async def start(self, before: Awaitable[None]) -> None:
        """Await something, then make records of users that have none yet, and go on until `close`."""
        await before
        if self._broker_url:
            await self._update(first=True)
            self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """End."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if self._bus is not None:
            await self._bus.close()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self._update()

    async def _update(self, *, first: bool = False) -> None:
        """Do it once; what does not work now is tried again, and said once."""
        try:
            if self._bus is None:
                self._bus = await NatsBus.connect(
                    self._broker_url, name="ryz up", connect_wait_s=_WAIT_S, local=True
                )
            if first or self._problem:
                await import_users(AccountsClient(self._bus, "ryz up"), self._state_dir)
            records, version = await read_accounts(self._bus, self._register.version)
            if version != self._register.version or not self._register.was_read:
                self._register.replace_all(records, version)
            give_broker(self._state_dir, self._register, time.time())
        except (RyzError, CommandError, OSError) as error:
            problem = str(error)
            if problem != self._problem:
                err.print(f"Bus users are not brought up to date: {problem}", markup=False, soft_wrap=True)
            self._problem = problem
        else:
            self._problem = ""
