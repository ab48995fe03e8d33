"""The first admin key of a stack whose broker keeps streams: made once, and written to a file of its user."""

from contextlib import suppress
from pathlib import Path

from cli.stack.host.private import write_private
from shared.bus.nats import NatsBus
from shared.client.calls.accounts_client import AccountsClient
from shared.errors import RyzError
from shared.host.local_stack import ADMIN_KEY_FILE
from shared.messages import KeyRecord, Scopes

_WAIT_S = 5.0


class FirstAdminKey:
    """Makes an admin key unless there is one already, and writes it into the state directory.

    Args:
        state_dir: The state directory of the stack.
        broker_url: Of our own broker, with the user of commands; empty: it is another one, which may keep
            nothing.

    Attributes:
        text: The key; empty: none was made.
    """

    def __init__(self, state_dir: Path, broker_url: str) -> None:
        self.text = ""
        self._file = state_dir / ADMIN_KEY_FILE
        self._broker_url = broker_url

    async def make_key(self) -> None:
        """Make it. A stack that cannot, serves without, and tries again at its next start."""
        if not self._broker_url or self._file.exists():
            return
        with suppress(RyzError):
            bus = await NatsBus.connect(self._broker_url, name="ryz up", connect_wait_s=_WAIT_S, local=True)
            try:
                await self._make_on(AccountsClient(bus, "ryz up"))
            finally:
                await bus.close()

    async def _make_on(self, client: AccountsClient) -> None:
        if any(key.scopes.admin for key in (await client.read()).keys_of()):
            return
        label = "made at the first start"
        wanted = KeyRecord(key_id="0" * 12, digest=bytes(32), label=label, scopes=Scopes(admin=True))
        made = await client.create_key(wanted)
        try:
            write_private(self._file, f"{made.text}\n")
        except OSError:
            await client.remove(made.record.name)
        else:
            self.text = made.text


def admin_key_words(state_dir: Path, text: str, *, shown: bool) -> str:
    """Return what a start says of the key that it made.

    Args:
        state_dir: The state directory of the stack.
        text: The key.
        shown: Whether the key itself may be printed: only where nothing keeps what is printed.
    """
    file = state_dir / ADMIN_KEY_FILE
    if shown:
        return f"Admin key, shown this once: {text}  (kept in {file})"
    return f"An admin key was made: it is in {file}."
