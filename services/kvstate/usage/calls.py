"""The call for sums of usage. Every replica answers, from what it follows of the stream of sums."""

from services.kvstate.call_server import CallKind
from services.kvstate.usage.streams import UsageStreams
from services.kvstate.usage.sums import UsageSums
from shared import subjects
from shared.accounts.register import AccountRegister
from shared.messages import UsagePage, UsageQuery


class UsageCalls:
    """Answers the call.

    Args:
        streams: The sums as they are stored.
        sums: A copy of them, which this reads on.
        register: Knows the currency.
    """

    def __init__(self, streams: UsageStreams, sums: UsageSums, register: AccountRegister) -> None:
        self._streams = streams
        self._sums = sums
        self._register = register

    def calls(self) -> tuple[CallKind, ...]:
        """Returns the call with its name, subject and type."""
        return (CallKind("usage", subjects.USAGE, UsageQuery, self._usage),)

    async def _usage(self, query: UsageQuery) -> UsagePage:
        if not query.cursor:
            await self._streams.refresh(self._sums)
        sums, cursor = self._sums.page(query.tenant, query.since, query.until, query.cursor)
        position, _ = await self._streams.position()
        return UsagePage(
            sums=sums, currency=self._register.rules.currency, read_to=position.read_to, cursor=cursor
        )
