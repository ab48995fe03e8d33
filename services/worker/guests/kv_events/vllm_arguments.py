"""Finds where vLLM publishes KV events in the arguments that it is started with."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from shared.errors import InvalidRequest

FLAG = "--kv-events-config"


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of vLLM's argument that a subscriber needs; it has further fields.

    Attributes:
        endpoint: Where vLLM publishes.
        replay_endpoint: Where it sends batches again; None: nowhere.
    """

    enable_kv_cache_events: bool = False
    publisher: str | None = "zmq"
    endpoint: Annotated[str, msgspec.Meta(min_length=1)] = "tcp://*:5557"
    replay_endpoint: str | None = None
    topic: str = ""

    @property
    def connects_to(self) -> tuple[str, str]:
        """The two addresses for a subscriber on the same machine; the second may be empty."""
        return _reachable(self.endpoint), _reachable(self.replay_endpoint or "")


def find_kv_events(arguments: Sequence[str]) -> KVEventsConfig | None:
    """Returns the configuration; None if vLLM publishes no events over ZeroMQ.

    Raises:
        InvalidRequest: The argument is no such configuration.
    """
    text = ""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == FLAG:
            text = value if equals else "".join(arguments[index + 1 : index + 2])
    if not text:
        return None
    try:
        config = msgspec.json.decode(text, type=KVEventsConfig)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{FLAG} of vLLM is not its JSON object: {error}", param=FLAG) from None
    return config if config.enable_kv_cache_events and config.publisher == "zmq" else None


def _reachable(endpoint: str) -> str:
    return endpoint.replace("://*:", "://127.0.0.1:").replace("://0.0.0.0:", "://127.0.0.1:")
