"""Follows the KV cache of the vLLM that a group starts itself, from its start to its end."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from services.worker.domain.blocks.names import PrefixSharing
from services.worker.guests.kv_events.contents import VllmContents
from services.worker.guests.kv_events.vllm_arguments import find_kv_events, with_addresses
from services.worker.rank_protocol.failures import EngineRefused
from shared import kv_hash

log = structlog.get_logger(__name__)


class OwnVllmKV:
    """The cache of one vLLM after another. All requests to it come from this group, with their tenants.

    Args:
        sharing: `tenant` if each request has its tenant as a salt, else `all`.
        adapters: The fingerprint of each adapter by vLLM's name for it.

    Attributes:
        contents: Empty while there is no vLLM.
    """

    def __init__(self, sharing: PrefixSharing, adapters: Callable[[str], str] = str) -> None:
        self.contents = VllmContents(sharing=sharing, adapters=adapters)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._arguments: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def prepare(self, arguments: Sequence[str]) -> list[str]:
        """Returns the arguments for the next start, with addresses for its events.

        Raises:
            EngineRefused: ZeroMQ is not installed.
        """
        try:
            import zmq  # noqa: F401, PLC0415 (an extra)
        except ImportError:
            raise EngineRefused(
                "--kv-events-config in RYZ_VLLM_ARGS needs ZeroMQ beside the leader: install the extra "
                "`vllm-events`, or leave it out"
            ) from None
        self.end()
        self._folder = tempfile.TemporaryDirectory(prefix="ryz-vllm-")  # for this user only
        self._arguments = with_addresses(arguments, Path(self._folder.name))
        return self._arguments

    def begin(self, fingerprint: str, block_tokens: int) -> None:
        """Follows the vLLM that was started with the arguments of `prepare`.

        Args:
            fingerprint: Names its weights.
            block_tokens: Of a block of its cache.
        """
        from services.worker.guests.kv_events.subscriber import VllmKVSubscriber  # noqa: PLC0415 (zmq)

        config = find_kv_events(self._arguments)
        assert config is not None
        self.contents.begin(fingerprint, block_tokens)
        subscriber = VllmKVSubscriber(self.contents, *config.connects_to, topic=config.topic)
        self._task = asyncio.get_running_loop().create_task(subscriber.run_forever())
        self._task.add_done_callback(self._note_end)

    def end(self) -> None:
        """Forgets the cache: vLLM is gone, or will be. May be called twice."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self.contents.begin("", kv_hash.BLOCK_TOKENS)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Claims nothing any more if the subscriber failed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("vLLM's KV events cannot be followed", error=f"{type(error).__name__}: {error}")
            self.contents.reset()


def kv_of_own_vllm(arguments: Sequence[str], sharing: PrefixSharing) -> OwnVllmKV | None:
    """Returns what follows a vLLM with these arguments; None if it publishes no events, or shares nothing."""
    if sharing == "off" or find_kv_events(arguments) is None:
        return None
    return OwnVllmKV(sharing)
