"""Tells a start that the records of tenants and keys are gone, which the state directory had before.

The broker's streams are the only place of these records, so their directory may have been deleted or lost. A
stack without records takes requests without a key on its own machine, as a new one does.
"""

from pathlib import Path

from cli.keys.kept_admin_key import read_kept
from shared.accounts.keys import key_id_of
from shared.bus.nats import NatsBus
from shared.client.calls.accounts_client import AccountsClient
from shared.errors import RyzError
from shared.host.local_stack import ADMIN_KEY_FILE
from shared.messages.tenants.accounts import ACCOUNTS_EMPTIED

_WAIT_S = 5.0


async def lost_records_note(state_dir: Path, broker_url: str, streams: Path) -> str:
    """Return what to say of lost records; empty: none are missing, or that is not known.

    Args:
        state_dir: The state directory of the stack.
        broker_url: Of our own broker, with the user of commands; empty: it is another one.
        streams: The directory of our broker's streams.
    """
    if not broker_url or key_id_of(read_kept(state_dir)) is None:
        return ""
    try:
        bus = await NatsBus.connect(broker_url, name="ryz up", connect_wait_s=_WAIT_S, local=True)
        try:
            if (await AccountsClient(bus, "ryz up").read()).version:
                return ""
        finally:
            await bus.close()
    except RyzError as error:
        if error.data.get("reason") != ACCOUNTS_EMPTIED:
            return ""
        until_then = "refused, as keys were required"
    else:
        until_then = "taken on this machine, as by a new stack"
    return (
        f"The records of tenants, keys and usage are gone: {state_dir / ADMIN_KEY_FILE} has a key that the "
        f"broker's streams in {streams} do not. Bring that directory back, or delete the file and start "
        f"again to begin anew. Until then requests without a key are {until_then} "
        "(docs/security.md#without-jetstream)."
    )
