"""Finds where vLLM publishes KV events in the arguments that it is started with, or says where."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

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
    text = _given(arguments)
    if not text:
        return None
    try:
        config = msgspec.json.decode(text, type=KVEventsConfig)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{FLAG} of vLLM is not its JSON object: {error}", param=FLAG) from None
    return config if config.enable_kv_cache_events and config.publisher == "zmq" else None


def with_addresses(arguments: Sequence[str], folder: Path) -> list[str]:
    """Returns arguments that say where to publish: in sockets of a folder, unless both addresses are given.

    vLLM's own default is a port on all interfaces, and its events have the tokens of prompts.

    Args:
        arguments: With a configuration that `find_kv_events` takes.
    """
    config: dict[str, Any] = {
        "publisher": "zmq",
        "endpoint": f"ipc://{folder}/events",
        "replay_endpoint": f"ipc://{folder}/replays",
        **msgspec.json.decode(_given(arguments)),
    }
    return [*arguments, FLAG, msgspec.json.encode(config).decode()]  # the last one counts


def _given(arguments: Sequence[str]) -> str:
    text = ""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") == FLAG:
            text = value if equals else "".join(arguments[index + 1 : index + 2])
    return text


def _reachable(endpoint: str) -> str:
    return endpoint.replace("://*:", "://127.0.0.1:").replace("://0.0.0.0:", "://127.0.0.1:")
