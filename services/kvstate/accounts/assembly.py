"""Builds what the service does about tenants, keys and prices."""

from contextlib import AsyncExitStack

from services.kvstate.accounts.calls import AccountCalls
from services.kvstate.accounts.store import ClosedMark
from services.kvstate.accounts.stream_accounts import StreamAccounts
from services.kvstate.accounts.stream_audit import StreamAudit
from shared.accounts.register import AccountRegister
from shared.bus import Bus
from shared.bus.jetstream.jetstream import JetStream
from shared.client.calls.accounts_sync import AccountsSync

STREAM_CALL_S = 2.0  # a call that went out when the broker was lost has no answer; others wait for it


def account_calls(bus: Bus, stack: AsyncExitStack, mark: ClosedMark) -> AccountCalls:
    """The calls about the records, which are in streams of the broker; `mark` outlives these."""
    jetstream = JetStream(bus, timeout_s=STREAM_CALL_S)
    stack.push_async_callback(jetstream.stop)
    return AccountCalls(bus, StreamAccounts(bus, jetstream), StreamAudit(jetstream), mark)


async def keep_register(bus: Bus, register: AccountRegister, stack: AsyncExitStack) -> None:
    """Keeps the service's own copy of the records as gateways keep theirs, until the stack closes.

    Its quotas, sums and limits are by these.
    """
    await AccountsSync(bus, register).open(stack)
