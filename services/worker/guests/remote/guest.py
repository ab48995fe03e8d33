"""The remote guest: the guest port in front of an OpenAI-compatible server."""

from collections.abc import Callable

from services.worker.guests.port import GuestFacts, GuestPart, GuestSequence
from services.worker.guests.remote.options import RemoteOptions, check_options
from services.worker.text.tokenizer import Tokenizer


class RemoteGuest:
    """See the module.

    Args:
        tokenizer: Of the model that the server serves; the probe checks that it is.
        context_length: Of the model by our files; 0: not known. The server's counts where it is smaller.

    Raises:
        InvalidRequest: The options are wrong.
    """

    def __init__(self, options: RemoteOptions, *, tokenizer: Tokenizer, context_length: int = 0) -> None:
        check_options(options)
        self._options = options
        self._tokenizer = tokenizer
        self._context_length = context_length

    async def start(self) -> GuestFacts:
        """See `Guest`."""
        raise NotImplementedError

    def watch(self, on_part: Callable[[GuestPart], None], on_failure: Callable[[str], None]) -> None:
        """See `Guest`."""
        raise NotImplementedError

    def open(self, sequence: GuestSequence) -> None:
        """See `Guest`."""
        raise NotImplementedError

    def close(self, seq_id: int) -> None:
        """See `Guest`."""
        raise NotImplementedError

    def status(self) -> dict[str, object]:
        """See `Guest`."""
        raise NotImplementedError

    async def stop(self) -> None:
        """See `Guest`."""
        raise NotImplementedError
